"""The registry's secrets of Spark jobs: the environment names files and commands that give them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from helpers.security.guards import Handler, basic, served
from twofold_spark.errors import UsageError
from twofold_spark.sources.registry import Registry, find_secret


@contextmanager
def registry_that_accepts(right: str, callers: list[str | None]) -> Iterator[str]:
    """A registry without subjects; it denies other callers, and remembers each."""

    class Answers(Handler):
        def do_GET(self) -> None:
            callers.append(self.headers.get("Authorization"))
            denied = callers[-1] != right
            body = json.dumps({"error_code": 40101 if denied else 40401, "message": ""})
            self.answer(body.encode(), 401 if denied else 404)

    with served(Answers) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.mark.parametrize("kind", ["PASSWORD", "TOKEN"])
def test_rotation_of_the_registrys_secret_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The command's first output is denied; the second one is accepted."""
    script = 'cat "$1"; echo accepted > "$1"'
    (tmp_path / "secret").write_text("expired\n")
    command = ["sh", "-c", script, "sh", str(tmp_path / "secret")]
    monkeypatch.setenv(f"TWOFOLD_REGISTRY__{kind}_COMMAND", json.dumps(command))
    if kind == "PASSWORD":
        monkeypatch.setenv("TWOFOLD_REGISTRY__USERNAME", "me")
    expired, accepted = (
        basic("me", secret) if kind == "PASSWORD" else f"Bearer {secret}" for secret in ("expired", "accepted")
    )
    callers: list[str | None] = []
    with registry_that_accepts(accepted, callers) as url:
        assert Registry(url).find_subject("bank.public.t-value") is None
    assert callers == [expired, accepted]


@pytest.mark.parametrize("value", ["cat /run/secret", "[]", '["cat", 1]', '{"cat": 1}'])
def test_a_command_that_is_no_list_of_texts_is_told(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("TWOFOLD_REGISTRY__TOKEN_COMMAND", value)
    with pytest.raises(UsageError, match="must be a JSON list of texts"):
        find_secret("TWOFOLD_REGISTRY__TOKEN")


def test_without_a_command_or_a_file_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for way in ("COMMAND", "FILE"):
        monkeypatch.delenv(f"TWOFOLD_REGISTRY__TOKEN_{way}", raising=False)
    assert find_secret("TWOFOLD_REGISTRY__TOKEN") is None


@pytest.mark.parametrize("kind", ["PASSWORD_FILE", "TOKEN_FILE", "PASSWORD_COMMAND", "TOKEN_COMMAND"])
def test_an_empty_variable_is_refused(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """It would name nobody, and what the registry then answers says nothing of it."""
    monkeypatch.setenv("TWOFOLD_REGISTRY__USERNAME", "me")
    monkeypatch.setenv(f"TWOFOLD_REGISTRY__{kind}", " ")
    with pytest.raises(UsageError, match=f"environment TWOFOLD_REGISTRY__{kind} is empty"):
        Registry("http://127.0.0.1:1")


def test_two_ways_for_one_secret_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWOFOLD_REGISTRY__TOKEN_FILE", "/run/secret")
    monkeypatch.setenv("TWOFOLD_REGISTRY__TOKEN_COMMAND", '["cat", "/run/secret"]')
    with pytest.raises(UsageError, match="give the same secret: unset one of them"):
        Registry("http://127.0.0.1:1")


def test_a_file_gives_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text("one\n")
    monkeypatch.setenv("TWOFOLD_REGISTRY__TOKEN_FILE", str(tmp_path / "secret"))
    callers: list[str | None] = []
    with registry_that_accepts("Bearer one", callers) as url:
        Registry(url).find_subject("bank.public.t-value")
    assert callers == ["Bearer one"]
