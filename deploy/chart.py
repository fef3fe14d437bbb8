"""The Helm chart: what it renders is valid, and deploy/kubernetes/twofold.yaml is what it renders.

    python deploy/chart.py write          writes the manifest
    python deploy/chart.py check GO...    helm lint, helm template, and schemas

Helm is the one of `make`, in .tools. The schemas of Kubernetes come with the package
kubernetes-validate. Those of the Prometheus operator are in its Go module, which GO fetches.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import yaml  # type: ignore[import-untyped]

ROOT: Final = Path(__file__).parents[1]
HELM: Final = ROOT / ".tools/bin/helm"
CHART: Final = ROOT / "deploy/helm/twofold"
EXAMPLE: Final = ROOT / "deploy/helm/bank.yaml"
MANIFEST: Final = ROOT / "deploy/kubernetes/twofold.yaml"
HEADER: Final = """\
# What deploy/helm/twofold renders with deploy/helm/bank.yaml, by `make manifest`: for those who have no Helm.
# docs/use/deploy.md says what to change, and how to make the secret.
"""
KUBERNETES: Final = ("1.28", "1.37")
"""The oldest and the newest version whose schemas the package has."""
OPERATOR: Final = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
VARIANTS: Final = (
    (),
    ("monitoring.enabled=true", "monitoring.labels.release=prometheus", "imagePullSecrets[0].name=mine"),
    ("mirror.storage=", "networkPolicy.enabled=false"),
    ("mirror.storageClassName=fast",),
    ("mirror.enabled=false", "connector.replicas=1"),
)
"""Each way through the templates."""


def render(*settings: str) -> str:
    """Return what the chart renders with the example's values and `settings`."""
    options = [option for setting in settings for option in ("--set", setting)]
    return _run(str(HELM), "template", "bank", str(CHART), "--values", str(EXAMPLE), *options)


def manifest() -> str:
    return HEADER + render()


def main(action: str, *go: str) -> None:
    if action == "write":
        MANIFEST.write_text(manifest())
        return
    _run(str(HELM), "lint", "--strict", str(CHART), "--values", str(EXAMPLE))
    operator = _operator_schemas(*go)
    objects = 0
    for settings in VARIANTS:
        for described in yaml.safe_load_all(render(*settings)):
            _validate(described, operator)
            objects += 1
    if MANIFEST.read_text() != manifest():
        sys.exit(f"{MANIFEST.relative_to(ROOT)} is not what the chart renders: make manifest")
    print(f"the chart renders {objects} valid objects in {len(VARIANTS)} variants")  # noqa: T201


def _validate(described: dict[str, Any], operator: dict[str, dict[str, Any]]) -> None:
    # Only this check has the packages.
    import jsonschema  # noqa: PLC0415
    import kubernetes_validate  # noqa: PLC0415

    name = f"{described['kind']} {described['metadata']['name']}"
    try:
        if described["kind"] in operator:
            jsonschema.validate(described, operator[described["kind"]])
            return
        for version in KUBERNETES:
            kubernetes_validate.validate(described, version, strict=True)
    except (jsonschema.ValidationError, kubernetes_validate.ValidationError) as error:
        sys.exit(f"{name}: {error}")


def _operator_schemas(*go: str) -> dict[str, dict[str, Any]]:
    folder = (
        Path(json.loads(_run(*go, "mod", "download", "-json", OPERATOR))["Dir"]) / "example/prometheus-operator-crd"
    )
    schemas = {}
    for name in ("podmonitors", "prometheusrules"):
        spec = yaml.safe_load((folder / f"monitoring.coreos.com_{name}.yaml").read_text())["spec"]
        (version,) = spec["versions"]
        schemas[spec["names"]["kind"]] = _closed(version["schema"]["openAPIV3Schema"])
    return schemas


def _closed(schema: Any) -> Any:
    """The schema without room for properties that it does not name.

    Patterns are left out: they are Go's regular expressions.
    """
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items() if (key, type(value)) != ("pattern", str)}
    if isinstance(schema.get("properties"), dict) and "additionalProperties" not in schema:
        closed["additionalProperties"] = False
    return closed


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main(*sys.argv[1:])
