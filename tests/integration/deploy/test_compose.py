"""What can be shown of docker-compose.yml and the images without a Docker engine; where
docker-compose is installed it judges the file as well.

That the whole file comes up and carries rows was tried by hand, with stand-ins for the official
images: tests/records/containers.md.
"""

from __future__ import annotations

import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from twofold import config
from twofold.cli import COMMANDS
from twofold.watch.server import Health, StatusServer, StatusSources
from twofold_spark.job import arguments as spark_commands

pytestmark = pytest.mark.core

ROOT = Path(__file__).parents[3]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = ["connector", "init", "mirror"]
BY_THE_IMAGE = {"init", "mirror", "connector"}
"""Without a health check in the file: the first ends by itself, the second when it fails, the third
has its image's.
"""
SECRET_NAME = re.compile("password|secret|token|credential|_key$", re.IGNORECASE)


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """The connector's environment in its container, here."""
    monkeypatch.chdir(tmp_path)
    for name, value in SERVICES["connector"]["environment"].items():
        monkeypatch.setenv(name, value)
    return monkeypatch


def compose_command() -> list[str] | None:
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    docker = shutil.which("docker")
    if docker and subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode == 0:
        return [docker, "compose"]
    return None


def test_compose_accepts_the_file() -> None:
    command = compose_command()
    if command is None:
        pytest.skip("neither docker-compose nor docker compose is installed")
    said = subprocess.run(
        [*command, "-f", str(ROOT / "docker-compose.yml"), "config", "-q"], capture_output=True, text=True, check=False
    )
    assert (said.returncode, said.stderr) == (0, "")


def test_secrets_are_files_that_git_ignores() -> None:
    for service in SERVICES.values():
        for name, value in service.get("environment", {}).items():
            if SECRET_NAME.search(name):
                assert name.endswith("_FILE"), name
                assert value.removeprefix("/run/secrets/") in service["secrets"]
        assert not re.search(r"password=|://[^/]*:[^/]*@", str(service), re.IGNORECASE)
    files = [secret["file"] for secret in COMPOSE["secrets"].values()]
    ignored = subprocess.run(["git", "check-ignore", *files], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ignored.stdout.split() == files


def test_secrets_are_made_once_and_only_for_the_folders_owner(tmp_path: Path) -> None:
    shutil.copytree(
        ROOT / "deploy",
        tmp_path / "deploy",
        ignore=shutil.ignore_patterns("postgres_*", "status_token", "grafana_admin"),
    )
    script, folder = tmp_path / "deploy" / "make-secrets", tmp_path / "deploy" / "secrets"
    subprocess.run([script], check=True)
    names = {Path(secret["file"]).name for secret in COMPOSE["secrets"].values()}
    first = {path.name: path.read_text() for path in folder.iterdir() if path.name != ".gitignore"}
    assert first.keys() == names
    assert all(re.fullmatch("[0-9a-f]{48}", password) for password in first.values())
    assert len(set(first.values())) == len(names)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    subprocess.run([script], check=True)
    assert first == {name: (folder / name).read_text() for name in names}


def test_the_connectors_environment_is_a_configuration(environment: pytest.MonkeyPatch) -> None:
    loaded = config.load()
    connector, kafka = SERVICES["connector"], SERVICES["kafka"]["environment"]
    assert f"INSIDE://{loaded.kafka.bootstrap}" in kafka["KAFKA_ADVERTISED_LISTENERS"].split(",")
    assert loaded.source.password_file == Path("/run/secrets/postgres_twofold")
    assert loaded.spool.folder == Path(connector["volumes"][0].partition(":")[2])
    created = (ROOT / "deploy/postgres/bank.sh").read_text()
    assert {f"public.{table}" for table in re.findall(r"CREATE TABLE (\w+)", created)} == set(loaded.source.tables)
    assert SERVICES["init"]["environment"] == connector["environment"]


def test_the_services_commands_exist(environment: pytest.MonkeyPatch) -> None:
    loaded = config.load()
    assert {SERVICES["init"]["command"], SERVICES["connector"]["command"]} <= COMMANDS.keys()
    mirror = spark_commands.build_parser().parse_args(SERVICES["mirror"]["command"])
    assert (mirror.bootstrap, mirror.registry) == (loaded.kafka.bootstrap, loaded.registry.url)
    assert mirror.prefixes == [loaded.prefix]
    assert Path(mirror.warehouse).is_relative_to(SERVICES["mirror"]["volumes"][0].partition(":")[2])


def test_ports_are_on_the_loopback_and_volumes_have_names() -> None:
    for name, service in SERVICES.items():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
        for volume in service.get("volumes", []):
            assert volume.partition(":")[0] in COMPOSE["volumes"] or volume.endswith(":ro")
        assert "healthcheck" in service or name in BY_THE_IMAGE


@pytest.mark.parametrize("service", OURS)
def test_our_images_run_without_root_and_without_privileges(service: str) -> None:
    described = SERVICES[service]
    assert described["read_only"]
    assert described["cap_drop"] == ["ALL"]
    steps = (ROOT / described["build"]["dockerfile"]).read_text()
    final = steps[steps.rindex("\nFROM ") :]
    assert re.findall(r"^USER (\d+):\d+$", final, re.MULTILINE) == ["10001"]
    assert final.index("\nUSER ") < final.index("\nENTRYPOINT ")


def test_images_are_built_by_the_uv_that_the_makefile_installs() -> None:
    pinned = re.search(r"^UV_VERSION := (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert pinned is not None
    for service in OURS:
        steps = (ROOT / SERVICES[service]["build"]["dockerfile"]).read_text()
        assert re.findall(r"uv==(\S+)", steps) == [pinned[1]]


def test_the_connector_is_healthy_while_healthz_says_so() -> None:
    """The command of the image's health check, against a server that answers so."""
    steps = (ROOT / SERVICES["connector"]["build"]["dockerfile"]).read_text()
    found = re.search(r"^HEALTHCHECK[^\n]*\\\n +CMD (\[.*\])$", steps, re.MULTILINE)
    assert found is not None
    interpreter, *arguments = yaml.safe_load(found[1])
    assert interpreter == "python"
    for healthy in (True, False):
        answers = StatusSources(lambda _: {}, lambda: b"", lambda is_so=healthy: Health(is_so, is_so, "as it is"))  # type: ignore[misc]
        with StatusServer("127.0.0.1", 0, answers) as server:
            here = [word.replace(":8787/", f":{server.port}/") for word in arguments]
            said = subprocess.run([sys.executable, *here], capture_output=True, check=False)
            assert (said.returncode == 0) is healthy, said.stderr
