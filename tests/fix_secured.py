"""Servers as a careful operator sets them up: PostgreSQL with TLS and SCRAM, Kafka with TLS, SASL and ACLs, a registry behind TLS and basic authentication.

`secured` gives them before anybody has a right. What the connector may do is granted by the statements of docs/security.md, which the fixture's users run.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import psycopg
import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from psycopg.conninfo import make_conninfo

from certificates import Authority
from fix_stack import VERSION
from gates import basic, guarded, served
from twofold.stack import KafkaCluster, PostgresServer, temporary_folder
from twofold.stack.process import choose_port

DOCS = Path(__file__).parents[1] / "docs"
SECRETS = {
    "postgres": "hunter2-postgres",
    "kafka": "hunter2-kafka",
    "registry": "hunter2-registry",
    "oauth": "hunter2-oauth",
}
_RESOURCES = {"--topic": ResourceType.TOPIC, "--group": ResourceType.GROUP, "--transactional-id": ResourceType.TRANSACTIONAL_ID}  # fmt: skip


def blocks(page: str, language: str) -> list[str]:
    """The code blocks of a page of docs/, in order."""
    boxes = re.findall(r"^```(\w*)\n(.*?)^```$", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)
    return [box for kind, box in boxes if kind == language]


@dataclass
class Secured:
    folder: Path
    authority: Authority
    postgres: PostgresServer
    kafka: KafkaCluster
    """Its own address is the administrator's: plain, and a super user's."""
    sasl: str
    mtls: str
    registry: str
    tokens: str
    """Where an OAuth client's id and secret are given a token for."""

    @property
    def dsn(self) -> str:
        """The connector's, but for the password."""
        address = make_conninfo("", host="localhost", hostaddr="127.0.0.1", port=self.postgres.port)
        return f"{address} dbname=bank user=twofold sslmode=verify-full sslrootcert={self.authority.certificate}"

    def sql(self, script: str, dbname: str = "bank") -> None:
        """As the administrator."""
        with psycopg.connect(self.postgres.dsn(dbname), autocommit=True) as connection:
            for statement in filter(None, map(str.strip, re.sub(r"--.*", "", script).split(";"))):
                connection.execute(statement)

    def acls(self, script: str) -> list[AclBinding]:
        """What the `kafka-acls` commands of a page grant."""
        return [acl for line in script.replace("\\\n", " ").splitlines() if line.startswith("kafka-acls") for acl in _acls(line)]  # fmt: skip

    def grant(self, acls: list[AclBinding]) -> None:
        admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap})
        for future in admin.create_acls(acls).values():
            future.result(20)

    def revoke(self, acls: list[AclBinding]) -> None:
        admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap})
        exactly = [AclBindingFilter(a.restype, a.name, a.resource_pattern_type, a.principal, a.host, a.operation, a.permission_type) for a in acls]  # fmt: skip
        for future in admin.delete_acls(exactly).values():
            assert future.result(20), "it was granted"

    def scram(self, user: str, password: str) -> None:
        admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap})
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 8192)
        change = UserScramCredentialUpsertion(user, info, password.encode())
        for future in admin.alter_user_scram_credentials([change]).values():
            future.result(20)


def _acls(command: str) -> Iterator[AclBinding]:
    words = shlex.split(command)
    given = dict(pairwise(words))
    pattern = ResourcePatternType[given.get("--resource-pattern-type", "literal").upper()]
    kind, name = next(
        ((_RESOURCES[w], given[w]) for w in words if w in _RESOURCES), (ResourceType.BROKER, "kafka-cluster")
    )
    for word, operation in pairwise(words):
        if word == "--operation":
            name_of = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", operation).upper()
            yield AclBinding(kind, name, pattern, given["--allow-principal"], "*", AclOperation[name_of], AclPermissionType.ALLOW)  # fmt: skip


@pytest.fixture(scope="module")
def secured(registry: Any) -> Iterator[Secured]:
    folder = temporary_folder()
    authority = Authority(folder)
    with ExitStack() as ending:
        ending.callback(shutil.rmtree, folder, ignore_errors=True)
        postgres = ending.enter_context(_postgres(folder, authority))
        kafka, sasl, mtls = ending.enter_context(_kafka(folder, authority))
        gate = ending.enter_context(guarded(registry.url, basic("twofold", SECRETS["registry"]), authority))
        tokens = ending.enter_context(_token_endpoint())
        yield Secured(folder, authority, postgres, kafka, sasl, mtls, gate, tokens)


@contextmanager
def _postgres(folder: Path, authority: Authority) -> Iterator[PostgresServer]:
    server = PostgresServer(folder / "postgres", version=VERSION)
    server.start()
    try:
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            if connection.execute("SHOW ssl_library").fetchone() == ("",):
                pytest.skip("this PostgreSQL was built without TLS")
        data = folder / "postgres" / "data"
        for name, file in zip(("server.crt", "server.key"), authority.sign("postgres"), strict=True):
            shutil.copy(file, data / name)
            os.chown(data / name, data.stat().st_uid, data.stat().st_gid)
            (data / name).chmod(0o600)
        # The administrator of the tests comes in as before; everybody else by TLS and a password.
        (data / "pg_hba.conf").write_text(
            "host all postgres 127.0.0.1/32 trust\nhostssl all all 127.0.0.1/32 scram-sha-256\n"
        )
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET ssl = on")
        server.restart()
        yield server
    finally:
        server.stop()


@contextmanager
def _kafka(folder: Path, authority: Authority) -> Iterator[tuple[KafkaCluster, str, str]]:
    certificate, key = authority.sign("kafka")
    both = folder / "kafka-both.pem"
    both.write_text(key.read_text() + certificate.read_text())
    sasl, mtls = (f"127.0.0.1:{choose_port(None, 'Kafka')}" for _ in range(2))
    jaas = "org.apache.kafka.common.security"
    cluster = KafkaCluster(
        folder / "kafka",
        settings={
            "listener.security.protocol.map": "CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_SSL,MTLS:SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(both),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(authority.certificate),
            "ssl.principal.mapping.rules": "RULE:^CN=([a-z]+)$/$1/",
            "listener.name.mtls.ssl.client.auth": "required",
            "listener.name.sasl.sasl.enabled.mechanisms": "SCRAM-SHA-512,OAUTHBEARER",
            "listener.name.sasl.scram-sha-512.sasl.jaas.config": f"{jaas}.scram.ScramLoginModule required;",
            "listener.name.sasl.oauthbearer.sasl.jaas.config": f"{jaas}.oauthbearer.OAuthBearerLoginModule required;",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "allow.everyone.if.no.acl.found": "false",
        },
    )
    node = cluster.nodes[0]
    outer = f"CLIENT://{node.address},SASL://{sasl},MTLS://{mtls}"
    cluster._settings |= {
        "listeners": f"{outer},CONTROLLER://127.0.0.1:{node.controller_port}",
        "advertised.listeners": outer,
    }
    cluster.start()
    try:
        yield cluster, sasl, mtls
    finally:
        cluster.stop()


@contextmanager
def _token_endpoint() -> Iterator[str]:
    """OAuth's client credentials: the right secret is given a token in the name of the client. Unsigned, which Kafka's own validator takes."""
    wanted = basic("twofold", SECRETS["oauth"])

    def part(value: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    class Endpoint(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            may = self.headers.get("Authorization") == wanted and asked["grant_type"] == ["client_credentials"]
            now = int(time.time())
            token = f"{part({'alg': 'none'})}.{part({'sub': 'twofold', 'iat': now, 'exp': now + 3600})}."
            body = json.dumps(
                {"access_token": token, "token_type": "bearer", "expires_in": 3600} if may else {}
            ).encode()
            self.send_response(200 if may else 401)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with served(Endpoint) as port:
        yield f"http://127.0.0.1:{port}/token"
