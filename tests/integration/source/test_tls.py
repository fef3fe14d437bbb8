"""TLS as a libpq connection string asks for it: the stream runs over it, and what is wrong with a
certificate is named with its remedy.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from psycopg.conninfo import make_conninfo

from integration.source.stream import kinds, make_slot, streaming
from twofold.errors import SetupError
from twofold.source import identity
from twofold.source.messages import Begin, Commit, Insert
from twofold.stack import PostgresServer

pytestmark = pytest.mark.core

NAME = "db.example"


@dataclass(frozen=True)
class Authority:
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    def write(self, file: Path) -> Path:
        file.write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))
        return file


def signed(
    subject: str, key: ec.EllipticCurvePrivateKey, issuer: str, signer: ec.EllipticCurvePrivateKey, *, is_ca: bool
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
    )
    if not is_ca:
        names = [x509.DNSName(subject), x509.IPAddress(ipaddress.ip_address("192.0.2.1"))]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(signer, hashes.SHA256())


def authority(name: str) -> Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    return Authority(key, signed(name, key, name, key, is_ca=True))


@pytest.fixture
def ours() -> Authority:
    return authority("our authority")


@pytest.fixture
def server(own_postgres: Callable[..., PostgresServer], open_folder: Path, ours: Authority) -> PostgresServer:
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = open_folder / "server.crt"
    certificate.write_bytes(
        signed(NAME, key, "our authority", ours.key, is_ca=False).public_bytes(serialization.Encoding.PEM)
    )
    key_file = open_folder / "server.key"
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
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
    ca = ours.write(tmp_path / "ca.crt")
    conninfo = dsn(server, ca)
    with psycopg.connect(conninfo, autocommit=True) as writer:
        writer.execute("CREATE TABLE t (id int PRIMARY KEY)")
        make_slot(conninfo, "s")
        with streaming(conninfo, "s") as stream:
            used = writer.execute("SELECT ssl FROM pg_stat_ssl WHERE pid = %s", [stream.session.backend_pid])
            assert used.fetchone() == (True,)
            writer.execute("INSERT INTO t VALUES (1)")
            assert kinds(stream.until_mark(writer)) == [Begin, Insert, Commit]

    theirs = authority("their authority").write(tmp_path / "other.crt")
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
