"""Redirects of HTTP: to the server that was asked, and to no other."""

from __future__ import annotations

import re
import ssl
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from helpers.security.certificates import Authority
from helpers.security.guards import Handler, served
from twofold.config import Config
from twofold.doctor import registry as doctor
from twofold.errors import SetupError
from twofold.kafka.kafka_settings import open_registry
from twofold.watch.page_client import ask_page
from twofold_common.http_client import open_url
from twofold_spark.errors import SetupError as JobSetupError
from twofold_spark.sources.registry import Registry as JobRegistry

ROOT = Path(__file__).parents[3]
PRODUCT = [ROOT / name for name in ("connector", "common", "avro", "spark_jobs", "reader")]


class Thief:
    """Sees what is brought to it."""

    def __init__(self) -> None:
        self.callers: list[str | None] = []

    @contextmanager
    def listen(self) -> Iterator[str]:
        seen = self.callers

        class Answers(Handler):
            def do_GET(self) -> None:
                seen.append(self.headers.get("Authorization"))
                self.answer(b"[]")

        with served(Answers) as port:
            yield f"http://127.0.0.1:{port}"


@contextmanager
def redirecting(to: str, context: ssl.SSLContext | None = None) -> Iterator[str]:
    """A server that sends everybody elsewhere; an empty `to` is a place of its own."""

    class Answers(Handler):
        def do_GET(self) -> None:
            if self.path.startswith("/here"):
                self.answer((self.headers.get("Authorization") or "").encode())
                return
            self.send_response(302)
            self.send_header("Location", to or "/here")
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_POST = do_GET  # noqa: N815

    with served(Answers, context) as port:
        yield f"{'https' if context else 'http'}://localhost:{port}"


def make_config(url: str, secret: Path) -> Config:
    secret.write_text("hunter2")
    return Config.model_validate(
        {
            "name": "bank",
            "source": {"dsn": "host=db"},
            "kafka": {"bootstrap": "kafka:9092"},
            "registry": {"url": url, "username": "me", "password_file": secret, "timeout": 3},
            "status": {"listen": url.partition("://")[2], "token_file": secret},
        }
    )


CLIENTS: dict[str, tuple[Callable[[str, Path], Any], type[Exception]]] = {
    "connector": (lambda url, secret: open_registry(make_config(url, secret)).versions("a"), SetupError),
    "doctor": (lambda url, secret: list(doctor.examine(make_config(url, secret))), SetupError),
    "jobs": (lambda url, _: JobRegistry(url).find_subject("a"), JobSetupError),
}


@pytest.mark.parametrize("client", CLIENTS)
def test_credentials_do_not_follow_a_redirect_to_another_server(
    client: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TWOFOLD_REGISTRY__USERNAME", "me")
    (tmp_path / "job").write_text("hunter2")
    monkeypatch.setenv("TWOFOLD_REGISTRY__PASSWORD_FILE", str(tmp_path / "job"))
    ask, kind = CLIENTS[client]
    thief = Thief()
    with (
        thief.listen() as elsewhere,
        redirecting(f"{elsewhere}/\x1b[2Jsubjects") as url,
        pytest.raises(kind, match=r"HTTP 302|answers 302") as told,
    ):
        ask(url, tmp_path / "secret")
    assert thief.callers == []
    assert f"redirects to another server, {elsewhere}" in str(told.value)
    assert re.search(r"registry\.url|--registry", str(told.value))
    assert "\x1b" not in str(told.value)


def test_the_token_of_the_page_does_not_follow_either(tmp_path: Path) -> None:
    thief = Thief()
    with thief.listen() as elsewhere, redirecting(elsewhere) as url:
        assert ask_page(make_config(url, tmp_path / "secret")) is None
    assert thief.callers == []


def test_a_redirect_within_a_server_is_followed() -> None:
    with redirecting("") as url:
        request = urllib.request.Request(url, headers={"Authorization": "Bearer hunter2"})
        with open_url(request, timeout_s=5) as answer:
            assert answer.read() == b"Bearer hunter2"


@pytest.mark.parametrize("may_leave", [False, True])
def test_nothing_leads_from_tls_into_the_clear(tmp_path: Path, may_leave: bool) -> None:
    authority = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.sign("registry"))
    thief = Thief()
    with thief.listen() as elsewhere, redirecting(elsewhere, context) as url:
        trusted = ssl.create_default_context(cafile=str(authority.certificate))
        with pytest.raises(HTTPError, match="redirects from https to http"):
            open_url(url, timeout_s=5, context=trusted, may_leave=may_leave)
    assert thief.callers == []


def test_a_download_may_be_sent_to_another_server() -> None:
    """Maven's mirrors do it; a locked sum says whether it is the right file."""
    thief = Thief()
    with thief.listen() as elsewhere, redirecting(elsewhere) as url, open_url(url, timeout_s=5, may_leave=True) as got:
        assert got.read() == b"[]"
    assert thief.callers == [None]


def test_nobody_asks_in_another_way() -> None:
    """`urlopen` and an opener of one's own follow every redirect, with all headers."""
    direct = re.compile(r"\burlopen\(|\bbuild_opener\(|HTTPS?Connection\(|^import requests|^import httpx", re.MULTILINE)
    files = {file for folder in PRODUCT for file in folder.rglob("*.py")}
    asking = {file.name for file in files if direct.search(file.read_text())}
    assert asking == {"http_client.py", "kept_connections.py"}  # the second follows no redirect at all
