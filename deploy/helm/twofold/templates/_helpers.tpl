{{- define "twofold.name" -}}
twofold-{{ .Release.Name }}
{{- end }}

{{- define "twofold.labels" -}}
{app.kubernetes.io/name: twofold, app.kubernetes.io/instance: {{ .Release.Name }}}
{{- end }}

{{- define "twofold.connector" -}}
{app.kubernetes.io/name: twofold, app.kubernetes.io/instance: {{ .Release.Name }}, app.kubernetes.io/component: connector}
{{- end }}

{{- define "twofold.mirror" -}}
{app.kubernetes.io/name: twofold, app.kubernetes.io/instance: {{ .Release.Name }}, app.kubernetes.io/component: mirror}
{{- end }}

{{- define "twofold.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext: {runAsNonRoot: true, runAsUser: 10001, runAsGroup: 10001, fsGroup: 10001, seccompProfile: {type: RuntimeDefault}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
{{- end }}

{{- define "twofold.container" -}}
securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
{{- end }}
