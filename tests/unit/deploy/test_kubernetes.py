"""The manifests and the systemd unit fit the connector: its settings, its ports, its exit
statuses.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from twofold.config import load

ROOT = Path(__file__).parents[3]
MANIFESTS: dict[str, dict[str, Any]] = {
    each["kind"]: each for each in yaml.safe_load_all((ROOT / "deploy/kubernetes/twofold.yaml").read_text())
}
POD: dict[str, Any] = MANIFESTS["Deployment"]["spec"]["template"]["spec"]
UNIT = (ROOT / "deploy/systemd/twofold@.service").read_text()


def test_the_configuration_is_one(tmp_path: Path) -> None:
    file = tmp_path / "twofold.toml"
    file.write_text(MANIFESTS["ConfigMap"]["data"]["twofold.toml"])
    config = load(file)
    (container,) = POD["containers"]
    assert [port["containerPort"] for port in container["ports"]] == [config.status.port]
    places = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert str(config.spool.folder) in places
    spool = next(v for v in POD["volumes"] if v["name"] == places[str(config.spool.folder)])
    assert config.spool.disk < int(spool["emptyDir"]["sizeLimit"].removesuffix("Gi")) << 30
    (environment,) = container["env"]
    assert environment == {"name": "TWOFOLD_CONFIG", "value": "/etc/twofold/twofold.toml"}


def test_the_secret_has_every_file_that_the_configuration_names() -> None:
    text = (ROOT / "deploy/kubernetes/twofold.yaml").read_text()
    made = set(re.findall(r"--from-file=(\S+)", text))
    assert set(re.findall(r"/run/secrets/twofold/([\w.]+)", text)) == made


def test_probes_ask_what_a_standby_answers_too() -> None:
    (container,) = POD["containers"]
    for probe in ("readinessProbe", "livenessProbe", "startupProbe"):
        assert container[probe]["httpGet"] == {"path": "/healthz", "port": "status"}
    assert MANIFESTS["Deployment"]["spec"]["replicas"] == 2


@pytest.mark.parametrize("container", POD["initContainers"] + POD["containers"], ids=lambda c: str(c["name"]))
def test_without_root_and_without_privileges(container: dict[str, Any]) -> None:
    assert POD["securityContext"]["runAsNonRoot"]
    context = container["securityContext"]
    assert (context["readOnlyRootFilesystem"], context["capabilities"]) == (True, {"drop": ["ALL"]})


def test_everything_is_selected_by_the_same_labels() -> None:
    labels = MANIFESTS["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert MANIFESTS["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert MANIFESTS["Service"]["spec"]["selector"] == labels
    assert MANIFESTS["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels


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
