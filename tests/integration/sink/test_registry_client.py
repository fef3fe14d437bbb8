"""The registry client against the real registry, and through a server in front of it that asks for
credentials and speaks TLS.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from helpers.avro.schema_readers import Subject
from helpers.security.certificates import Authority
from helpers.security.guards import Handler, basic, guarded, served
from twofold.errors import Refused, SetupError, Unreachable, UsageError
from twofold.kafka.names import Names
from twofold.kafka.schema_registry import Registry, key_subject, register_fixed, value_subject
from twofold.kafka.subjects import Subjects
from twofold_avro.records import Pin
from twofold_avro.schemas import canonical
from twofold_common.registry_http import authorization
from twofold_reader.schemas import schemas_at

pytestmark = pytest.mark.core


def record(*fields: str, kind: str = "long") -> str:
    return json.dumps({"type": "record", "name": "R", "fields": [{"name": f, "type": kind} for f in fields]})


def make_client(url: str, **settings: Any) -> Registry:
    return Registry(url, **settings)


@pytest.fixture
def client(registry: Any) -> Registry:
    return make_client(registry.url)


def test_a_schema_has_one_id_however_often_it_is_registered(client: Registry, registry: Any, prefix: str) -> None:
    subject = value_subject(f"{prefix}.public.a")
    assert client.versions(subject) == []
    first = client.register(subject, record("a"))
    assert first == client.register(subject, record("a"))
    assert first == make_client(registry.url).register(subject, record("a"))
    assert json.loads(client.schema(first)) == json.loads(record("a"))
    assert json.loads(client.versions(subject)[-1]) == json.loads(record("a"))
    assert subject == f"{prefix}.public.a-value"
    assert key_subject("t") == "t-key"


def test_a_subject_is_withdrawn_once_or_again(client: Registry, prefix: str) -> None:
    """A table may lose its key twice before a schema of a key is registered again."""
    subject = key_subject(f"{prefix}.public.a")
    client.register(subject, record("a"))
    for _ in range(2):
        client.withdraw(subject)
        assert client.versions(subject) == []
        assert client.known_id(subject, record("a")) is None
    client.register(subject, record("a"))


@pytest.mark.slow
def test_a_known_schema_asks_the_registry_no_more(own_registry: Callable[[], Any], prefix: str) -> None:
    server = own_registry()
    client = make_client(server.url, timeout_s=2)
    known = client.register(f"{prefix}-value", record("a"))
    client.schema(known)
    server.kill()
    assert client.register(f"{prefix}-value", record("a")) == known
    assert client.schema(known)
    with pytest.raises(Unreachable, match="does not answer"):
        client.register(f"{prefix}-value", record("b"))
    server.restart()
    fresh = make_client(server.url)
    assert fresh.register(f"{prefix}-value", record("a")) == known  # it kept its data


def test_an_incompatible_schema_is_refused_with_the_registrys_reason(
    client: Registry, registry: Any, prefix: str
) -> None:
    subject = f"{prefix}-value"
    client.register(subject, record("a"))
    Subject(registry.url, prefix).allow("BACKWARD")
    with pytest.raises(Refused, match=r"BACKWARD|[Ii]ncompatible|READER_FIELD_MISSING") as refused:
        client.register(subject, record("a", "b"))
    assert subject in str(refused.value)
    assert "no row was written" in refused.value.at_stake
    assert json.loads(client.versions(subject)[-1]) == json.loads(record("a"))
    Subject(registry.url, prefix).allow("NONE")
    assert client.register(subject, record("a", "b")), "the repair that the message names"


def test_nonsense_is_refused(client: Registry, prefix: str) -> None:
    with pytest.raises(Refused, match="valid"):
        client.register(f"{prefix}-value", '{"type": "nonsense"}')


def test_an_id_that_the_registry_does_not_know_is_told(client: Registry) -> None:
    with pytest.raises(SetupError, match="schema 2000000000"):
        client.schema(2_000_000_000)


def test_a_replica_of_the_registry_that_lags_behind_is_asked_again(
    client: Registry, registry: Any, prefix: str
) -> None:
    schema = record("a")
    known, target = client.register(f"{prefix}-value", schema), urlsplit(registry.url)
    asked: list[str] = []

    class Replica(Handler):
        def do_GET(self) -> None:
            asked.append(self.path)
            if len(asked) % 3:
                self.answer(b'{"error_code": 40403, "message": "Schema not found"}', 404)
                return
            with urlopen(f"http://{target.netloc}{self.path}", timeout=10) as answer:
                self.answer(answer.read())

    with served(Replica) as port:
        url = f"http://127.0.0.1:{port}{target.path}"
        assert json.loads(make_client(url).schema(known, again=True)) == json.loads(schema)
        assert json.loads(schemas_at(url)(known)) == json.loads(schema)
    assert len(asked) == 6


def test_a_404_that_is_not_the_registrys_is_no_answer(client: Registry, registry: Any, prefix: str) -> None:
    """A gateway's, or of a path that is not the API's: whether the subject is there is not
    known.
    """
    assert client.known_id(f"{prefix}-value", record("a")) is None
    client.register(f"{prefix}-value", record("a"))
    assert client.known_id(f"{prefix}-value", record("b")) is None
    elsewhere = make_client(f"{registry.url}/elsewhere")
    for ask in (
        lambda: elsewhere.versions(f"{prefix}-value"),
        lambda: elsewhere.known_id(f"{prefix}-value", record("a")),
        lambda: elsewhere.schema(1),
    ):
        with pytest.raises(Unreachable, match=r"HTTP 404 .*correct registry\.url"):
            ask()


def test_the_fixed_records_have_subjects_of_their_own(client: Registry, prefix: str) -> None:
    ids = register_fixed(client, Names(prefix, "me"))
    kinds = [json.loads(client.schema(i))["name"] for i in (ids.commit, ids.progress, ids.pin, ids.prepared)]
    assert kinds == ["Commit", "Progress", "Pin", "Prepared"]
    assert ids == register_fixed(client, Names(prefix, "me"))


def test_an_address_where_nobody_answers_is_told_within_the_bound() -> None:
    begun = time.monotonic()
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1"):
        make_client("http://127.0.0.1:1", timeout_s=2).register("s", record("a"))
    assert time.monotonic() - begun < 20


@pytest.mark.parametrize(
    "settings",
    [{"url": ""}, {"url": "ftp://x"}, {"url": "http://"}, {"url": "https://x", "ca_file": Path("/none")}],
)
def test_settings_that_make_no_sense_are_told(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="registry"):
        make_client(**settings)


CREDENTIALS: dict[str, tuple[dict[str, Any], str]] = {
    "basic": ({"credentials": lambda: authorization(basic=("me", "pass:word"))}, basic("me", "pass:word")),
    "bearer": ({"credentials": lambda: authorization(bearer="abc")}, "Bearer abc"),
}


@pytest.mark.parametrize("how", ["basic", "bearer"])
def test_credentials_and_tls_are_used_and_their_lack_is_told(
    registry: Any, tmp_path: Path, prefix: str, how: str
) -> None:
    settings, expected = CREDENTIALS[how]
    authority = Authority(tmp_path)
    known: dict[str, Any] = {"ca_file": authority.certificate, "timeout_s": 5.0}
    with guarded(registry.url, expected, authority) as url:
        assert make_client(url, **known, **settings).register(f"{prefix}-value", record("a")) > 0
        with pytest.raises(SetupError, match="401"):
            make_client(url, **known).register(f"{prefix}-value", record("b"))
        with pytest.raises(Unreachable, match="certificate"):
            make_client(url, timeout_s=2, **settings).register(f"{prefix}-value", record("b"))


def test_rotation_of_the_secret_is_an_outage_while_it_is_denied(registry: Any, tmp_path: Path, prefix: str) -> None:
    authority = Authority(tmp_path)
    known: dict[str, Any] = {"ca_file": authority.certificate, "credentials_expire": True}
    answers = ["expired", "expired", "accepted"]
    with guarded(registry.url, "Bearer accepted", authority) as url:
        rotating = make_client(url, credentials=lambda: authorization(bearer=answers.pop(0)), timeout_s=20.0, **known)
        assert rotating.register(f"{prefix}-value", record("a")) > 0
        assert answers == []
        stays = make_client(url, credentials=lambda: authorization(bearer="expired"), timeout_s=2.0, **known)
        with pytest.raises(Unreachable, match=r"401.*correct registry\.username and its password") as told:
            stays.register(f"{prefix}-value", record("a"))
    assert "expired" not in str(told.value)


@pytest.mark.parametrize("is_newest", [True, False])
def test_what_was_asked_ahead_is_not_asked_again(
    client: Registry, registry: Any, prefix: str, *, is_newest: bool
) -> None:
    topic = f"{prefix}.public.t"
    key, value = (canonical(json.loads(record(field))) for field in "kv")
    ids = client.register(key_subject(topic), key), client.register(value_subject(topic), value)
    if not is_newest:
        client.register(value_subject(topic), record())  # a column was dropped
    pin = Pin("public", "t", 6, key, *ids)
    started = make_client(registry.url)
    Subjects(started, prefix).ask_ahead(topic, pin)
    started._http = cast("Any", None)  # whoever asks the registry fails
    assert started.known_id(value_subject(topic), value) == pin.value_schema_id
    assert started.register(key_subject(topic), key) == pin.key_schema_id
