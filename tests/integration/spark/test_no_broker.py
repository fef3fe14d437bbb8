"""A job whose brokers do not answer, or that was pointed to the wrong place: it says so in one
sentence, and hears Ctrl-C while it waits.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from fixtures.stack import Kafka
from helpers.spark import process as spark_process
from twofold_common import java
from twofold_spark.job import cli
from twofold_spark.sources.kafka_client import ANSWER_WITHIN_S

SOON_S = 30.0


def options(folder: Path, bootstrap: str) -> list[str]:
    return [
        "--bootstrap", bootstrap, "--registry", "http://127.0.0.1:9", "--prefix", "bank", "--warehouse", str(folder),
        "--java-home", str(java.spark_java_home()),
    ]  # fmt: skip


def job(folder: Path, bootstrap: str) -> subprocess.Popen[str]:
    """Kafka is asked before the registry, which is not there either."""
    line = [sys.executable, "-m", "twofold_spark", "mirror", *options(folder, bootstrap)]
    return subprocess.Popen(
        line, stderr=subprocess.PIPE, text=True, env=spark_process.job_environment(), start_new_session=True
    )


def last_words(process: subprocess.Popen[str]) -> str:
    """What the job said, without what Java and Spark say as they start."""
    _, said = process.communicate(timeout=300)
    return "\n".join(line for line in said.splitlines() if line.startswith("mirror: ") or "Exception" in line)


def test_a_wrong_address_is_one_sentence(tmp_path: Path) -> None:
    began, bootstrap = time.monotonic(), "127.0.0.1:9"
    process = job(tmp_path, bootstrap)
    said = last_words(process)
    assert time.monotonic() - began < SOON_S
    assert process.returncode == 3, said
    assert_no_broker_answers(said, bootstrap)


def assert_no_broker_answers(said: str, bootstrap: str) -> None:
    assert said.startswith(f"mirror: no Kafka broker answers at {bootstrap} (")
    assert said.endswith("check --bootstrap, and the TLS and SASL settings of --kafka-file and --kafka")
    assert len(said.splitlines()) == 1


@pytest.mark.usefixtures("session_of_the_tests")
def test_a_host_without_a_name_and_a_wrong_prefix_are_one_sentence(
    kafka: Kafka, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def say(bootstrap: str) -> str:
        assert cli.main(["mirror", *options(tmp_path, bootstrap)]) == 3
        return capsys.readouterr().err.strip()

    assert_no_broker_answers(say("no-such-host.invalid:9092"), "no-such-host.invalid:9092")

    there = f"there_{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([NewTopic(f"{there}.commits", 1, 1)])[f"{there}.commits"].result(30)
    said = say(kafka.bootstrap)
    assert said.startswith(f"mirror: Kafka at {kafka.bootstrap} has no topic bank.commits, the prefixes there are ")
    assert there in said
    assert ": correct --prefix or --bootstrap, run twofold init first, or grant Read on its topics: kafka-acls" in said
    assert len(said.splitlines()) == 1


def test_a_warehouse_that_cannot_be_written_is_one_sentence(tmp_path: Path, kafka: Kafka) -> None:
    (tmp_path / "file").touch()
    process = job(tmp_path / "file/lake", kafka.bootstrap)
    said = last_words(process)
    assert process.returncode == 3, said
    assert said == f"mirror: cannot write to --warehouse {tmp_path}/file/lake: Not a directory: give a folder of yours"


def assert_interrupted(process: subprocess.Popen[str]) -> None:
    """At once: it does not wait for the broker's answer first."""
    process.send_signal(signal.SIGINT)
    sent = time.monotonic()
    said = last_words(process)
    assert time.monotonic() - sent < ANSWER_WITHIN_S
    assert process.returncode == 130, said
    assert said == "mirror: interrupted"


def test_ctrl_c_ends_the_start_of_spark(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        process = job(tmp_path, f"127.0.0.1:{silent.getsockname()[1]}")
        assert process.stderr is not None
        assert process.stderr.readline()  # Java's first, or its launcher's: Spark is being started
        assert_interrupted(process)


def test_ctrl_c_is_heard_while_a_broker_is_waited_for(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        process = job(tmp_path, f"127.0.0.1:{silent.getsockname()[1]}")
        silent.settimeout(300)
        silent.accept()[0].close()  # whether anybody is there
        with silent.accept()[0]:  # by now it waits
            assert_interrupted(process)
