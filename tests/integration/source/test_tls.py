"""TLS as a libpq connection string asks for it: the stream runs over it, and what is wrong with a
certificate is named with its remedy.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from helpers.security.certificates import Authority
from integration.source.stream import kinds, make_slot, streaming
from twofold.errors import SetupError
from twofold.source import identity
from twofold.source.messages import Begin, Commit, Insert
from twofold.stack import PostgresServer

pytestmark = pytest.mark.core

NAME = "localhost"


@pytest.fixture
def ours(open_folder: Path) -> Authority:
    return Authority(open_folder)


@pytest.fixture
def server(own_postgres: Callable[..., PostgresServer], ours: Authority) -> PostgresServer:
    certificate, key_file = ours.sign(NAME, address="192.0.2.1")
    plain = own_postgres(version="18", settings={"fsync": "off"})
    owner = (plain.folder / "data").stat()
    for file in (certificate, key_file):
        os.chown(file, owner.st_uid, owner.st_gid)
    key_file.chmod(0o600)
    with psycopg.connect(plain.dsn(), autocommit=True) as connection:
        for setting, value in (("ssl_cert_file", certificate), ("ssl_key_file", key_file), ("ssl", "on")):
            connection.execute(f"ALTER SYSTEM SET {setting} = '{value}'")
    plain.restart()
    return plain


def dsn(server: PostgresServer, ca: Path, host: str = NAME, mode: str = "verify-full") -> str:
    return make_conninfo(server.dsn(), host=host, hostaddr="127.0.0.1", sslmode=mode, sslrootcert=str(ca))


def test_the_stream_runs_over_tls_and_a_wrong_certificate_is_named(
    server: PostgresServer, ours: Authority, tmp_path: Path
) -> None:
    conninfo = dsn(server, ca := ours.certificate)
    with psycopg.connect(conninfo, autocommit=True) as writer:
        writer.execute("CREATE TABLE t (id int PRIMARY KEY)")
        make_slot(conninfo, "s")
        with streaming(conninfo, "s") as stream:
            used = writer.execute("SELECT ssl FROM pg_stat_ssl WHERE pid = %s", [stream.session.backend_pid])
            assert used.fetchone() == (True,)
            writer.execute("INSERT INTO t VALUES (1)")
            assert kinds(stream.until_mark(writer)) == [Begin, Insert, Commit]

    theirs = Authority(tmp_path, "their authority").certificate
    for wrong, words in (
        (dsn(server, theirs), "certificate verify failed.*; remedy: .*sslrootcert"),
        (dsn(server, tmp_path / "none.crt"), "none.crt.*does not exist.*; remedy: .*sslrootcert"),
        (dsn(server, ca, host="elsewhere"), "does not match host name.*; remedy: .*to a name in the certificate"),
    ):
        with pytest.raises(SetupError, match=words):
            identity.identify(wrong)
    assert identity.identify(dsn(server, ca, host="elsewhere", mode="verify-ca")).timeline == 1


def test_a_server_without_tls_is_named(database: str) -> None:
    with pytest.raises(SetupError, match=r"does not support SSL.*; remedy: ALTER SYSTEM SET ssl = on"):
        identity.identify(make_conninfo(database, sslmode="require"))
