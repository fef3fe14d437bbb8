"""Settings that give secrets that expire: each secret has one source, and what it says is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from twofold.config import load
from twofold.errors import Unreachable, UsageError
from twofold.kafka.kafka_secrets import KafkaSecrets, load_token_provider
from twofold.kafka.kafka_settings import kafka_settings, open_registry
from twofold.source.connection import connect

FILE = """
name = "bank"
[source]
dsn = "host=127.0.0.1 port=1 dbname=bank user=twofold"
{source}
[kafka]
bootstrap = "127.0.0.1:1"
{kafka}
[registry]
url = "http://127.0.0.1:1"
username = "me"
{registry}
"""
COMMAND = 'password_command = ["cat", "{secret}"]'
FILE_OF_IT = 'password_file = "{secret}"'


def write(folder: Path, **parts: str) -> Path:
    (folder / "secret").write_text("hunter2-1\n")
    file = folder / "twofold.toml"
    texts = {
        name: parts.get(name, "").replace("{secret}", str(folder / "secret"))
        for name in ("source", "kafka", "registry")
    }
    file.write_text(FILE.format(**texts))
    return file


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ("source", FILE_OF_IT),
        ("kafka", FILE_OF_IT),
        ("registry", FILE_OF_IT),
        ("registry", 'token_file = "{secret}"\ntoken_command = ["cat"]'),
    ],
)
def test_a_secret_with_two_sources_is_refused(tmp_path: Path, part: str, text: str) -> None:
    with pytest.raises(UsageError, match="has the same secret twice") as told:
        load(write(tmp_path, **{part: f"{text}\n{COMMAND}"}))
    assert "hunter2" not in str(told.value)


@pytest.mark.parametrize(("option", "way"), [("sasl.password", "password_file"), ("ssl.key.password", "options_file")])
def test_a_secret_among_kafkas_options_is_refused(tmp_path: Path, option: str, way: str) -> None:
    with pytest.raises(UsageError, match=rf"must not hold {option}.*give it as kafka\.{way}") as told:
        load(write(tmp_path, kafka=f'options = {{ "{option}" = "hunter2" }}'))
    assert "hunter2" not in str(told.value)


def test_kafkas_password_in_the_file_of_the_other_secrets_is_refused(tmp_path: Path) -> None:
    (tmp_path / "kafka.toml").write_text('"sasl.password" = "hunter2"')
    config = load(write(tmp_path, kafka=f'options_file = "{tmp_path}/kafka.toml"'))
    with pytest.raises(UsageError, match=r"give it as kafka\.password_file"):
        kafka_settings(config)


def test_kafkas_other_secrets_are_read_in_utf_8_in_each_locale(tmp_path: Path) -> None:
    file = tmp_path / "kafka.toml"
    config = load(write(tmp_path, kafka=f'options_file = "{file}"'))
    file.write_bytes('"ssl.key.password" = "schlüssel"'.encode("utf-8-sig"))
    assert kafka_settings(config).client["ssl.key.password"] == "schlüssel"
    file.write_bytes('"ssl.key.password" = "schlüssel"'.encode("latin-1"))
    with pytest.raises(UsageError, match=r"kafka\.toml is not UTF-8, which TOML is: byte 26") as raised:
        kafka_settings(config)
    assert raised.value.__cause__ is None


@pytest.mark.parametrize("way", [COMMAND, FILE_OF_IT])
def test_rotation_of_the_registrys_password_is_seen_by_the_next_request(tmp_path: Path, way: str) -> None:
    client = open_registry(load(write(tmp_path, registry=way)))._http
    first = client._credentials()
    (tmp_path / "secret").write_text("hunter2-2\n")
    assert client._credentials() != first
    assert client.credentials_expire


def test_a_command_that_fails_is_an_outage(tmp_path: Path) -> None:
    config = load(write(tmp_path, source='password_command = ["false"]'))
    with pytest.raises(Unreachable, match=r"the command of source\.password_command, false, ended with status 1"):
        connect(config.conninfo)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("no_such_module:give", "cannot be loaded"),
        ("json:no_such_name", "cannot be loaded"),
        ("json", "is not callable"),
        ("json:__doc__", "is not callable"),
    ],
)
def test_a_provider_of_tokens_that_cannot_be_used_is_told(name: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        load_token_provider(name)


@pytest.mark.parametrize("expiry", [1_800_000_000.5, 1_800_000_000_500])
def test_the_expiry_of_a_token_is_in_seconds_or_milliseconds(expiry: float) -> None:
    provided: Any = KafkaSecrets(token_provider=lambda config: (f"for {config}", expiry))
    assert provided._token("here") == ("for here", 1_800_000_000.5)


@pytest.mark.parametrize("token", ["", " ", None])
def test_an_empty_token_is_none(token: str | None, caplog: pytest.LogCaptureFixture) -> None:
    provided: Any = KafkaSecrets(token_provider=lambda _: (token, 1_800_000_000))
    with pytest.raises(Unreachable):
        provided._token("")
    assert "gave no token" in caplog.text


def test_what_a_failing_provider_says_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    def fails(_: str) -> tuple[Any, ...]:
        raise RuntimeError("hunter2")

    provided: Any = KafkaSecrets(token_provider=fails)
    with pytest.raises(Unreachable) as told:
        provided._token("")
    assert told.value.__cause__ is None
    assert told.value.__context__ is None
    assert "hunter2" not in f"{told.value} {caplog.text}"
    assert "RuntimeError" in caplog.text
