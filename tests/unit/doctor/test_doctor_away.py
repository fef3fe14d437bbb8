"""Doctor where nothing answers, and where something answers that is not Kafka."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from twofold.config import Config, load
from twofold.doctor import Severity, examine, kafka
from twofold.errors import SetupError

NOWHERE = "127.0.0.1:1"


def config(folder: Path, bootstrap: str = NOWHERE, options: str = "{}") -> Config:
    file = folder / "bank.toml"
    file.write_text(
        f'name = "bank"\n[source]\ndsn = "host=127.0.0.1 port=1 dbname=bank"\n[registry]\nurl = "http://{NOWHERE}"\ntimeout = 1\n'
        f'[kafka]\nbootstrap = "{bootstrap}"\ncall_timeout = 2\noptions = {options}\n'
        f'[spool]\nfolder = "{folder}"\n'
    )
    return load(file)


def test_when_all_is_away_each_part_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found = examine(config(tmp_path))
    assert {f.where for f in found if f.severity is Severity.MUST} == {"postgresql", "kafka", "registry"}
    assert all(f.remedy for f in found)
    said = {f.where: f for f in found if f.severity is Severity.MUST}
    assert said["kafka"].what == (
        f"Kafka at {NOWHERE} does not answer: Connect to ipv4#{NOWHERE} failed: Connection refused"
    )
    assert said["kafka"].remedy == ("start Kafka, or correct kafka.bootstrap, and security.protocol in kafka.options",)
    assert said["postgresql"].remedy == ("start PostgreSQL, or correct host and port in source.dsn",)
    assert said["registry"].what == f"the registry at http://{NOWHERE} does not answer: Connection refused"
    assert capfd.readouterr().err == ""


@pytest.fixture
def no_tls() -> Iterator[str]:
    """The address of a server that hangs up on everybody with a line of text."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                with client:
                    client.recv(100)
                    client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_why_kafka_does_not_let_us_in_is_told_and_not_only_that_nobody_answers(tmp_path: Path, no_tls: str) -> None:
    with pytest.raises(SetupError, match=r"SSL handshake failed.*check ssl"):
        list(kafka.examine(config(tmp_path, no_tls, '{"security.protocol" = "SSL"}')))
