"""What is wrong with a registry's certificate is said by each client, with what helps."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from helpers.security.certificates import Authority
from helpers.security.guards import served
from twofold.config import Config
from twofold.doctor import registry as doctor
from twofold.kafka.kafka_settings import open_registry
from twofold_common.errors import TwofoldError
from twofold_spark.sources import registry as jobs


def make_config(url: str, authority: Path) -> Config:
    return Config.model_validate(
        {
            "name": "bank",
            "source": {"dsn": "host=db"},
            "kafka": {"bootstrap": "kafka:9092"},
            "registry": {"url": url, "ca_file": str(authority), "timeout": 0.5},
        }
    )


CLIENTS: dict[str, tuple[Callable[[str, Path], Any], str, str]] = {
    "connector": (
        lambda url, ca: open_registry(make_config(url, ca)).versions("a"),
        "registry.url",
        "registry.ca_file",
    ),
    "doctor": (lambda url, ca: list(doctor.examine(make_config(url, ca))), "registry.url", "registry.ca_file"),
    "jobs": (lambda url, _: jobs.Registry(url).find_subject("a"), "--registry", "TWOFOLD_REGISTRY__CA_FILE"),
}
WRONG = {
    "age": r"has expired.*renew the registry's certificate",
    "host": r"certificate is not valid for '127\.0\.0\.1'.*set {address} to a name in the certificate",
    "authority": r"certificate.*set {authorities} to the certificate of the authority",
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("client", CLIENTS)
def test_what_is_wrong_is_said(client: str, wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other").mkdir()
    authority, other = Authority(tmp_path), Authority(tmp_path / "other")
    signed = authority.sign(
        "registry",
        hours=-1 if wrong == "age" else 6,
        address="192.0.2.1" if wrong == "host" else "127.0.0.1",
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*signed)
    trusted = (other if wrong == "authority" else authority).certificate
    monkeypatch.setenv("TWOFOLD_REGISTRY__CA_FILE", str(trusted))
    monkeypatch.setattr(jobs, "PATIENCE_S", 0.5)
    ask, address, authorities = CLIENTS[client]
    said = WRONG[wrong].format(address=address, authorities=authorities)
    with served(BaseHTTPRequestHandler, context) as port, pytest.raises(TwofoldError, match=said) as told:
        ask(f"https://127.0.0.1:{port}", trusted)
    assert "start the registry" not in str(told.value)
