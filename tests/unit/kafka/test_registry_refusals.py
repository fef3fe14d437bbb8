"""What the registry's own errors mean: a person must act, or the next try may do. No registry."""

from __future__ import annotations

from typing import Any

import pytest

from twofold.errors import SetupError, Unreachable
from twofold.kafka.decoding import Decoder, RecordPlace
from twofold.kafka.schema_registry import Registry, SchemaRefused
from twofold_avro import wire
from twofold_avro.records import Commit
from twofold_common.registry_http import RegistryRefusal

SUBJECT = "bank.public.t-value"


def refusing(refusal: RegistryRefusal) -> Registry:
    """Return a client whose registry answers each question so."""

    def ask(*_: Any, **__: Any) -> Any:
        raise refusal

    registry = Registry("http://registry:8081")
    http: Any = registry._http
    http.ask = ask
    return registry


def test_mode_that_forbids_new_schemas_is_an_outage_with_its_remedy() -> None:
    refusal = RegistryRefusal(422, 42205, f"Subject {SUBJECT} is in read-only mode")
    with pytest.raises(Unreachable, match="read-only mode") as raised:
        refusing(refusal).register(SUBJECT, '"long"')
    assert f"""-d '{{"mode": "READWRITE"}}' http://registry:8081/mode/{SUBJECT}""" in str(raised.value)


def test_schema_that_is_not_valid_is_refused() -> None:
    with pytest.raises(SchemaRefused, match="is not valid: Input schema is an invalid Avro schema"):
        refusing(RegistryRefusal(422, 42201, "Input schema is an invalid Avro schema")).register(SUBJECT, "nonsense")


def test_schema_that_is_not_compatible_is_refused_with_the_command_that_allows_it() -> None:
    with pytest.raises(SchemaRefused) as raised:
        refusing(RegistryRefusal(409, 409, "READER_FIELD_MISSING_DEFAULT_VALUE")).register(SUBJECT, '"long"')
    assert f"""-d '{{"compatibility": "NONE"}}' http://registry:8081/config/{SUBJECT})""" in raised.value.repair


def test_record_whose_schema_is_gone_is_named_with_the_remedy() -> None:
    decoder = Decoder(refusing(RegistryRefusal(404, 40403, "Schema 7 not found")))
    with pytest.raises(SetupError, match=r"does not have schema 7; .* bank\.commits \[0\] at offset 5") as raised:
        decoder.decode(Commit, wire.frame(7, b""), RecordPlace("bank.commits", 0, 5))
    assert (
        "remedy: restore the registry with its former ids, or start the connector over that wrote it: `twofold reset`"
        in str(raised.value)
    )
