"""A connection pooler in the connection string: named as one, with what to do, before anything is
made. Needs PgBouncer (`apt install pgbouncer`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from fixtures.connector import Installation, Maker, wait_until
from fixtures.stack import Postgres
from twofold.doctor import Severity, examine
from twofold.source.connection import connect
from twofold.source.readiness import unreached_settings
from twofold.stack import temporary_folder
from twofold.stack.process import choose_port

pytestmark = [pytest.mark.core, pytest.mark.skipif(shutil.which("pgbouncer") is None, reason="PgBouncer is not here")]

WAYS = ("", "ignore_startup_parameters = options, extra_float_digits")
"""As it is installed, and as people set it whose clients send options."""
REMEDY = "give source.dsn the host and port of PostgreSQL itself"


def answers(conninfo: str) -> bool:
    try:
        psycopg.connect(conninfo, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


def through(conninfo: str, port: int) -> str:
    return make_conninfo(conninfo, host="127.0.0.1", port=str(port))


@pytest.fixture
def pooler(postgres: Postgres) -> Iterator[Callable[[str], int]]:
    """Start a PgBouncer with a setting before the tests' server, and return its port."""
    server = conninfo_to_dict(postgres.dsn())
    folder = temporary_folder()
    running = []

    def start(setting: str) -> int:
        port = choose_port(None, "PgBouncer")
        file = folder / f"{port}.ini"
        file.write_text(
            f"[databases]\n* = host={server['host']} port={server['port']} user={server['user']}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nauth_type = any\nunix_socket_dir =\n{setting}\n"
        )
        as_user = ["-u", "nobody"] if os.geteuid() == 0 else []
        running.append(subprocess.Popen(["pgbouncer", "-q", *as_user, file]))
        wait_until(lambda: answers(through(postgres.dsn(), port)))
        return port

    yield start
    for each in running:
        each.terminate()
        each.wait(10)
    shutil.rmtree(folder)


def pooled(here: Installation, port: int) -> Path:
    """Return a configuration of the same connector that goes through the pooler."""
    text, own = here.file.read_text(), f'dsn = "{here.conninfo}"'
    assert own in text
    file = here.file.with_name(f"{port}.toml")
    file.write_text(text.replace(own, f'dsn = "{through(here.conninfo, port)}"'))
    return file


@pytest.mark.parametrize("way", WAYS)
def test_a_pooler_is_named_before_anything_is_made(connector: Maker, pooler: Callable[[str], int], way: str) -> None:
    here = connector(init=False)
    here.sql("CREATE TABLE account (id int PRIMARY KEY)")
    here.file = pooled(here, pooler(way))
    for command in ("init", "run"):
        done = here.twofold(command)
        assert done.returncode == 3, done.stderr
        assert "pooler" in done.stderr
        assert REMEDY in done.stderr
        assert len(done.stderr.splitlines()) <= 2, "no second reading"
    first = examine(here.config)[0]
    assert first.severity is Severity.MUST
    assert "pooler" in " ".join([first.what, *first.remedy])
    assert here.ask("SELECT count(*) FROM pg_publication") == 0


def test_settings_that_do_not_arrive(postgres: Postgres, pooler: Callable[[str], int]) -> None:
    with connect(through(postgres.dsn(), pooler(WAYS[1]))) as connection:
        assert "search_path" in unreached_settings(connection)
    with connect(postgres.dsn()) as connection:
        assert unreached_settings(connection) == ()
