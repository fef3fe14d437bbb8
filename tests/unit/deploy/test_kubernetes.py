"""The chart's manifest and the systemd unit fit the connector and the mirror: their settings, their
ports, their exit statuses.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

import chart
from twofold import __version__
from twofold.config import load
from twofold_spark.job.arguments import build_parser

ROOT = Path(__file__).parents[3]
MANIFESTS: dict[tuple[str, str], dict[str, Any]] = {
    (each["kind"], each["metadata"]["name"]): each
    for each in yaml.safe_load_all((ROOT / "deploy/kubernetes/twofold.yaml").read_text())
}
CONNECTOR = MANIFESTS["Deployment", "twofold-bank"]["spec"]
MIRROR = MANIFESTS["Deployment", "twofold-bank-mirror"]["spec"]
POD: dict[str, Any] = CONNECTOR["template"]["spec"]
MIRROR_POD: dict[str, Any] = MIRROR["template"]["spec"]
UNIT = (ROOT / "deploy/systemd/twofold@.service").read_text()


def test_the_configuration_is_one(tmp_path: Path) -> None:
    file = tmp_path / "twofold.toml"
    file.write_text(MANIFESTS["ConfigMap", "twofold-bank"]["data"]["twofold.toml"])
    config = load(file)
    (container,) = POD["containers"]
    assert [port["containerPort"] for port in container["ports"]] == [config.status.port]
    places = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert str(config.spool.folder) in places
    spool = next(v for v in POD["volumes"] if v["name"] == places[str(config.spool.folder)])
    assert config.spool.disk < int(spool["emptyDir"]["sizeLimit"].removesuffix("Gi")) << 30
    (environment,) = container["env"]
    assert environment == {"name": "TWOFOLD_CONFIG", "value": "/etc/twofold/twofold.toml"}


@pytest.mark.skipif(not chart.HELM.exists(), reason="helm is not in .tools: make lint-chart builds it")
def test_the_manifest_is_what_the_chart_renders() -> None:
    assert chart.MANIFEST.read_text() == chart.manifest(), "make manifest"


def test_the_chart_has_the_version_of_the_packages() -> None:
    described = yaml.safe_load((chart.CHART / "Chart.yaml").read_text())
    assert described["version"] == described["appVersion"] == __version__


def test_the_secret_has_every_file_that_is_named() -> None:
    text = (ROOT / "deploy/kubernetes/twofold.yaml").read_text()
    made = set(re.findall(r"--from-file=(\S+)", (ROOT / "docs/use/deploy.md").read_text()))
    assert set(re.findall(r"/run/secrets/twofold/([\w.]+)", text)) == made


def test_the_mirror_takes_its_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (container,) = MIRROR_POD["containers"]
    file = tmp_path / "kafka.properties"
    file.write_text("security.protocol=SASL_SSL\n")
    words = [word.replace("/run/secrets/twofold", str(tmp_path)) for word in container["args"]]
    options = build_parser().parse_args(words)
    assert options.command == "mirror"
    assert [port["containerPort"] for port in container["ports"]] == [options.metrics[1]]
    places = [mount["mountPath"] for mount in container["volumeMounts"]]
    assert any(str(options.warehouse).startswith(f"{place}/") for place in places)


def test_one_mirror_at_a_time() -> None:
    assert (MIRROR["replicas"], MIRROR["strategy"]) == (1, {"type": "Recreate"})


def test_the_network_policy_lets_through_what_the_example_needs() -> None:
    spec = MANIFESTS["NetworkPolicy", "twofold-bank"]["spec"]
    named = {port["name"] for pod in (POD, MIRROR_POD) for port in pod["containers"][0]["ports"]}
    assert {port["port"] for port in spec["ingress"][0]["ports"]} == named
    ports = {port["port"] for rule in spec["egress"] for port in rule["ports"]}
    config = MANIFESTS["ConfigMap", "twofold-bank"]["data"]["twofold.toml"]
    # PostgreSQL's and HTTPS' own ports are not in the addresses.
    assert {int(port) for port in re.findall(r"example\.org:(\d+)", config)} | {53, 443, 5432} <= ports


def test_probes_ask_what_a_standby_answers_too() -> None:
    (container,) = POD["containers"]
    for probe in ("readinessProbe", "livenessProbe", "startupProbe"):
        assert container[probe]["httpGet"] == {"path": "/healthz", "port": "status"}
    assert CONNECTOR["replicas"] == 2


@pytest.mark.parametrize(
    "container", POD["initContainers"] + POD["containers"] + MIRROR_POD["containers"], ids=lambda c: str(c["name"])
)
def test_without_root_and_without_privileges(container: dict[str, Any]) -> None:
    assert POD["securityContext"]["runAsNonRoot"]
    assert MIRROR_POD["securityContext"]["runAsNonRoot"]
    context = container["securityContext"]
    assert (context["readOnlyRootFilesystem"], context["capabilities"]) == (True, {"drop": ["ALL"]})


def test_everything_is_selected_by_its_labels() -> None:
    labels = CONNECTOR["template"]["metadata"]["labels"]
    assert CONNECTOR["selector"]["matchLabels"] == labels
    assert MANIFESTS["Service", "twofold-bank"]["spec"]["selector"] == labels
    assert MANIFESTS["PodDisruptionBudget", "twofold-bank"]["spec"]["selector"]["matchLabels"] == labels
    assert MIRROR["selector"]["matchLabels"] == MIRROR["template"]["metadata"]["labels"] != labels
    policy = MANIFESTS["NetworkPolicy", "twofold-bank"]["spec"]["podSelector"]["matchLabels"]
    for pod in (CONNECTOR, MIRROR):
        assert policy.items() <= pod["template"]["metadata"]["labels"].items()


def test_the_unit_does_not_start_again_what_only_a_person_can_repair() -> None:
    table = (ROOT / "docs/reference/command-line.md").read_text()
    hopeless = re.findall(r"^\| (\d+) \|.*\| no(?:, and it does no harm)? \|$", table, re.MULTILINE)
    said = re.search(r"^RestartPreventExitStatus=(.*)$", UNIT, re.MULTILINE)
    assert said is not None
    assert said[1].split() == hopeless == ["2", "3", "5", "7"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not on this machine")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "twofold@bank.service"
    unit.write_text(UNIT.replace("/opt/twofold/bin/twofold", "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
