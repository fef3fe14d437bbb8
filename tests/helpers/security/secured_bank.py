"""The connector of docs/use/security.md against servers of `fixtures.secured`, and its ways in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fixtures.connector import Installation
from fixtures.secured import SECRETS, Secured
from helpers.reading import read_to_end


def bank(secured: Secured, folder: Path, kafka: dict[str, Any]) -> Installation:
    """The connector of the page; its secrets are in files."""
    for name in ("postgres", "registry"):
        (folder / f"{name}.secret").write_text(f"{SECRETS[name]}\n")
    made = Installation(folder, "bank", secured.dsn, secured.kafka.bootstrap, secured.registry, {})
    made._parts["source"] |= {"tables": [], "password_file": str(folder / "postgres.secret")}
    made._parts["registry"] |= {
        "username": "twofold",
        "password_file": str(folder / "registry.secret"),
        "ca_file": str(secured.authority.certificate),
    }
    made._parts["kafka"] |= {**kafka, "call_timeout": 15}
    made.configure({"log": {"level": "debug"}, "status": {"listen": "127.0.0.1:0"}})
    return made


def scram(secured: Secured, folder: Path) -> dict[str, Any]:
    (folder / "kafka.secret").write_text(f"{SECRETS['kafka']}\n")
    return {
        "bootstrap": secured.sasl,
        "password_file": str(folder / "kafka.secret"),
        "options": {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(secured.authority.certificate),
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "twofold",
        },
    }


def mtls(secured: Secured, _: Path) -> dict[str, Any]:
    certificate, key = secured.authority.sign("twofold")
    return {
        "bootstrap": secured.mtls,
        "options": {
            "security.protocol": "SSL",
            "ssl.ca.location": str(secured.authority.certificate),
            "ssl.certificate.location": str(certificate),
            "ssl.key.location": str(key),
        },
    }


def oauth(secured: Secured, folder: Path) -> dict[str, Any]:
    (folder / "kafka.secret").write_text(f'"sasl.oauthbearer.client.secret" = "{SECRETS["oauth"]}"\n')
    return {
        "bootstrap": secured.sasl,
        "options_file": str(folder / "kafka.secret"),
        "options": {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(secured.authority.certificate),
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": "twofold",
            "sasl.oauthbearer.token.endpoint.url": secured.tokens,
        },
    }


def rows(secured: Secured, table: str) -> int:
    """How many records of the table a read_committed consumer gets."""
    return sum(1 for _ in read_to_end(secured.kafka.bootstrap, [f"bank.public.{table}"], patience_s=20))
