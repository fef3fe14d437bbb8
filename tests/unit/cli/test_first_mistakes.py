"""Mistakes of the first hour that no server is needed for."""

from __future__ import annotations

import errno
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from twofold.cli import main
from twofold.errors import SetupError, Unreachable, UsageError
from twofold.kafka.schema_registry import Registry
from twofold.source.connection import connect
from twofold.stack import running, server_files
from twofold_common import artifacts

WAITS_IN_C = """
from confluent_kafka.admin import AdminClient
from twofold.cli.terminal import ended_at_once
import sys
while True:
    try:
        with ended_at_once():
            AdminClient({"bootstrap.servers": sys.argv[1]}).list_topics(timeout=120)
    except KeyboardInterrupt:  # it came before the call
        pass
"""


def test_a_file_named_behind_the_command() -> None:
    line = [sys.executable, "-m", "twofold", "status", "-c", "bank.toml"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert done.stderr.endswith("No such option '-c'.\nIt stands before the command: twofold -c FILE COMMAND\n")


def test_ctrl_c_ends_what_waits_inside_of_a_c_library() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        line = [sys.executable, "-c", WAITS_IN_C, address]
        with subprocess.Popen(line, stderr=subprocess.PIPE, text=True) as process:
            silent.settimeout(120)
            with silent.accept()[0]:  # it waits for an answer
                began = time.monotonic()
                while process.poll() is None and time.monotonic() - began < 60:
                    process.send_signal(signal.SIGINT)
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(1)
                _, said = process.communicate(timeout=200)
    assert time.monotonic() - began < 60
    assert (process.returncode, said) == (130, "stopped\n")


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(Unreachable) as raised:
        connect("host=127.0.0.1 port=1 dbname=bank")
    assert str(raised.value) == (
        'PostgreSQL at 127.0.0.1:1/bank does not answer: connection to server at "127.0.0.1", port 1 failed: Connection refused;'
        " remedy: start PostgreSQL, or correct host and port in source.dsn"
    )


def test_a_registry_that_speaks_http() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            with suppress(OSError):
                while True:
                    with server.accept()[0] as client:
                        client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                        client.recv(1000)

        thread = threading.Thread(target=answer)
        thread.start()
        registry = Registry(f"https://127.0.0.1:{server.getsockname()[1]}", timeout_s=2.0)
        with pytest.raises(Unreachable, match=r"does not answer: the server speaks http, and the address says https; "):
            registry.versions("bank.public.account-value")
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_folders_of_the_stack_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / "file/stack"
    with pytest.raises(UsageError, match=rf"{folder} cannot be made or written: Not a directory; .* --folder"):
        running.detach(folder, [], print)
    with pytest.raises(UsageError, match="--folder"), running.holding(folder):
        pass


def test_a_cache_that_is_somebody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    """As root nothing is forbidden."""

    def forbidden(_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setenv("TWOFOLD_CACHE", "/theirs")
    monkeypatch.setattr(artifacts, "fetch", forbidden)
    with pytest.raises(SetupError, match=r"the cache /theirs cannot be used: Permission denied; .* TWOFOLD_CACHE"):
        server_files.fetched(())


def test_an_error_of_a_reader_is_no_stop(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """click takes every EOFError for the end of a terminal, which has status 130."""

    def fail(*_: object, **__: object) -> None:
        raise EOFError("a record is cut")

    monkeypatch.setattr("twofold.cli.version.command.callback", fail)
    monkeypatch.setattr("sys.argv", ["twofold", "version"])
    with pytest.raises(EOFError, match="a record is cut"):
        main()
    assert "stopped" not in capsys.readouterr().err
