"""Bad ground is named: one line with the cause and the remedy."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from twofold.errors import SetupError, UsageError
from twofold.stack import postgres, server_files
from twofold.stack.kafka import KafkaCluster
from twofold.stack.process import choose_port
from twofold_common import java

ROOT = Path(__file__).parents[3]


def one_line(error: pytest.ExceptionInfo[BaseException]) -> str:
    message = str(error.value)
    assert "\n" not in message
    return message


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(SetupError) as error:
            choose_port(port, "PostgreSQL")
    assert one_line(error).startswith(f"port {port} for PostgreSQL is taken on 127.0.0.1: end what listens there")
    assert choose_port(port, "PostgreSQL") == port


def test_a_taken_port_ends_the_command_with_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        command = ["-m", "twofold", "stack", "up", "--folder", str(tmp_path), "--kafka-port", str(port)]
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 3
    (line,) = [line for line in done.stderr.splitlines() if not line.startswith("fetching")]
    assert line.startswith(f"twofold: port {port} for Kafka is taken on 127.0.0.1: end what listens there")


def test_free_ports_are_none_that_the_kernel_gives_to_a_client() -> None:
    lowest, highest = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert not any(lowest <= choose_port(None, "Kafka") <= highest for _ in range(20))


def test_two_processes_whose_chance_was_seeded_alike_choose_other_ports() -> None:
    """As the workers of a test run are: what one has chosen and not yet bound, the other must not
    choose too.
    """
    chosen = []
    for _ in range(2):
        random.seed(1)
        chosen.append([choose_port(None, "Kafka") for _ in range(3)])
    assert chosen[0] != chosen[1]


def make_java(folder: Path, version: str, modules: str = "java.base jdk.incubator.vector") -> Path:
    home = folder / f"java-{version}"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").touch(mode=0o755)
    (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return home


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The Java homes of a machine; it has no wheel."""
    homes: list[Path] = []
    monkeypatch.setattr(java, "_homes", lambda: iter(homes))
    monkeypatch.setattr(java, "_wheel", lambda: None)
    return homes


def test_java_that_is_too_old(machine: list[Path], tmp_path: Path) -> None:
    machine.append(make_java(tmp_path, "1.8.0_402"))
    machine.append(make_java(tmp_path, "17.0.1"))
    with pytest.raises(SetupError) as error:
        java.for_registry()
    assert one_line(error) == (
        f"the registry wants Java 21 or newer, this machine has 8 in {machine[0]}, 17 in {machine[1]}: "
        "pip install 'twofold[stack]', or install such a Java and set JAVA_HOME"
    )


def test_java_that_is_too_new_for_spark(machine: list[Path], tmp_path: Path) -> None:
    machine.append(make_java(tmp_path, "25"))
    with pytest.raises(SetupError, match="Spark wants Java 17 or 21, this machine has 25 in"):
        java.spark_java_home()


def test_the_newest_java_that_fits_is_taken(machine: list[Path], tmp_path: Path) -> None:
    machine += [make_java(tmp_path, version) for version in ("11.0.2", "17.0.9", "21.0.3", "25.0.1")]
    assert java.for_kafka().version == 25
    assert java.spark_java_home() == machine[2]


def test_the_wheel_serves_where_the_machine_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_homes", lambda: iter([]))
    assert java.for_registry().version == 21
    program = java.spark_java_home() / "bin" / "java"
    told = subprocess.run(
        [program, "--add-modules=jdk.incubator.vector", "-Dword=two words", "-XshowSettings:properties", "-version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "java.specification.version = 21" in told.stderr
    assert "word = two words" in told.stderr


def test_no_postgres(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "_bin_folders", list)
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(SetupError) as error:
        postgres.find_binaries(None, None)
    assert one_line(error).startswith("no PostgreSQL 15 or newer on this machine: install one, or pip install")


def test_a_postgres_version_that_is_not_there() -> None:
    with pytest.raises(UsageError, match="PostgreSQL 14 is not one of 15, 16, 17, 18"):
        postgres.find_binaries("14", None)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs PostgreSQL as another user")
def test_a_folder_that_the_servers_user_cannot_reach(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    tmp_path.chmod(0o755)
    with pytest.raises(SetupError) as error:
        server_files.own(closed / "data", server_files.server_user())
    assert "choose a folder elsewhere" in one_line(error)


@pytest.mark.parametrize("version", ["4.3.1", "4.4.0"])
def test_brokers_of_another_version(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(server_files.OTHER_KAFKA, str(ROOT / f"tests/fixtures/kafka-{version}.lock"))
    versions = {artifact.version for artifact in server_files.locked("kafka") if artifact.group == "org.apache.kafka"}
    assert versions == {version}
    assert server_files.locked("postgres"), "the others' files stay"


def test_a_lock_file_of_brokers_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(server_files.OTHER_KAFKA, "nowhere.lock")
    with pytest.raises(SetupError) as error:
        server_files.locked("kafka")
    assert one_line(error).startswith("TWOFOLD_KAFKA_LOCK names nowhere.lock, which cannot be read: No such file")


def test_data_of_another_number_of_nodes(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"node{number}" / "data").mkdir(parents=True)
    with pytest.raises(SetupError, match="has the data of 3 Kafka nodes, not of 1: ask for 3 brokers or choose"):
        KafkaCluster(tmp_path).start()


def test_python_that_is_too_old(tmp_path: Path) -> None:
    """A stand-in that is this Python in all but its version."""
    old = tmp_path / "python3.9"
    old.write_text(
        '#!/bin/sh\n[ "$1" = -V ] && { echo Python 3.9.2; exit; }\n'
        f'shift\nexec {sys.executable} -c "import sys; sys.version_info = (3, 9, 2); $1"\n'
    )
    old.chmod(0o755)
    done = subprocess.run(["make", "test", f"PYTHON={old}"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert f"Twofold needs Python 3.11 or newer and {old} is Python 3.9.2: install one" in line
