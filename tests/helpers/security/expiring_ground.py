"""PostgreSQL, a broker and a registry that let nobody in without a secret of a token server; each
behind a front that can cut and delay connections.

The administrator of the tests comes in as ever, past the fronts.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from chaos.proxy import Proxy
from helpers.security import ask_secret
from helpers.security.certificates import Authority
from helpers.security.guards import guarded
from helpers.security.kafka_logins import watched
from helpers.security.radius import radius
from helpers.security.token_server import TokenServer
from twofold.stack import KafkaCluster, PostgresServer
from twofold.stack.kafka import SMALL_JVM
from twofold.stack.process import choose_port

SERVERS = ("postgres", "kafka", "registry")
_HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
_LOGIN = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;"


@dataclass(frozen=True)
class ExpiringGround:
    tokens: TokenServer
    conninfo: str
    """The administrator's."""
    kafka: KafkaCluster
    """Its own address is the administrator's."""
    proxy: Proxy
    fronts: dict[str, int]
    certificate: Path

    def cut(self, *names: str, delay_s: float = 0.0) -> None:
        """Reset the connections; new ones are let through, or each piece is delayed."""
        for name in names:
            self.proxy.set(self.fronts[name], "cut")
        for name in names:
            self.proxy.set(self.fronts[name], "delay" if delay_s else "pass", seconds=delay_s)

    def settings(self) -> dict[str, dict[str, Any]]:
        """The connector's: `ask_secret` must be importable."""
        bearer = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.config": self.tokens.address,
        }
        return {
            "source": {
                "dsn": f"host=127.0.0.1 port={self.fronts['postgres']} user=twofold dbname=bank sslmode=disable",
                "password_command": self._command("postgres"),
            },
            "kafka": {
                "bootstrap": f"127.0.0.1:{self.fronts['kafka']}",
                "token_provider": "ask_secret:give",
                "options": bearer,
            },
            "registry": {
                "url": f"https://localhost:{self.fronts['registry']}",
                "token_command": self._command("registry"),
                "ca_file": str(self.certificate),
            },
        }

    def _command(self, name: str) -> list[str]:
        return [sys.executable, "-IS", ask_secret.__file__, self.tokens.address, name]


@contextmanager
def expiring_ground(folder: Path, registry_url: str) -> Iterator[ExpiringGround]:
    """Start all of it, with the database bank and the role twofold."""
    with ExitStack() as ending:
        tokens = ending.enter_context(TokenServer().serving())
        authority = Authority(folder)
        method = ending.enter_context(radius(lambda password: tokens.judge("postgres", password)))
        postgres = PostgresServer(folder / "postgres")
        ending.callback(postgres.stop)
        postgres.start()
        _let_in(postgres, folder / "postgres" / "data" / "pg_hba.conf", method)
        fronts = {name: choose_port(None, "a front") for name in SERVERS}
        kafka, sasl = _kafka(folder / "kafka", fronts["kafka"], tokens)
        ending.callback(kafka.stop)
        kafka.start()
        witness = ending.enter_context(watched(sasl, lambda token, may: tokens.note("kafka", token, accepted=may)))
        guard = ending.enter_context(
            guarded(
                registry_url,
                lambda header: tokens.judge("registry", header.removeprefix("Bearer ")),
                authority,
            )
        )
        behind = {"postgres": postgres.port, "kafka": witness, "registry": int(guard.rpartition(":")[2])}
        proxy = Proxy({fronts[name]: port for name, port in behind.items()})
        ending.callback(proxy.close)
        for front in fronts.values():
            proxy.set(front, "pass")  # which it answers once it listens
        yield ExpiringGround(tokens, postgres.dsn("bank"), kafka, proxy, fronts, authority.certificate)


def _let_in(postgres: PostgresServer, rules: Path, method: str) -> None:
    rules.write_text(f"host all postgres 127.0.0.1/32 trust\nhost all twofold 127.0.0.1/32 {method}\n")
    with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
        for statement in (
            "SELECT pg_reload_conf()",
            "CREATE ROLE twofold LOGIN SUPERUSER",
            "CREATE DATABASE bank",
        ):
            connection.execute(statement)


def _kafka(folder: Path, front: int, tokens: TokenServer) -> tuple[KafkaCluster, int]:
    """A broker that checks signatures, and ends sessions whose token has expired; and its port."""
    jvm: Sequence[str] = (*SMALL_JVM, f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={tokens.keys}")
    cluster = KafkaCluster(folder, jvm=jvm)
    node, sasl = cluster.nodes[0], choose_port(None, "Kafka")
    listener = "listener.name.sasl.oauthbearer"
    cluster._settings |= {
        "listener.security.protocol.map": "CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT",
        "listeners": f"CLIENT://{node.address},SASL://127.0.0.1:{sasl},CONTROLLER://127.0.0.1:{node.controller_port}",
        "advertised.listeners": f"CLIENT://{node.address},SASL://127.0.0.1:{front}",
        "listener.name.sasl.sasl.enabled.mechanisms": "OAUTHBEARER",
        f"{listener}.sasl.jaas.config": _LOGIN,
        f"{listener}.sasl.server.callback.handler.class": _HANDLER,
        f"{listener}.connections.max.reauth.ms": "3600000",
        "sasl.oauthbearer.jwks.endpoint.url": tokens.keys,
        "sasl.oauthbearer.clock.skew.seconds": "0",
    }
    return cluster, sasl
