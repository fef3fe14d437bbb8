"""The schema registry: each schema version is registered once, under TopicNameStrategy's subjects, and never on the row path.

An outage raises `Unreachable`: the run ends before anything is written with the new schema, and goes on when the registry is back. A schema that the subject's compatibility forbids
raises `Refused` with the registry's own reason, before a row is written with it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.common._httpx_compat import httpx
from confluent_kafka.schema_registry.error import OAuthTokenError, SchemaRegistryError

from twofold.errors import MissingGround, Refused, TwofoldError, Unreachable, UsageError

_T = TypeVar("_T")

_TRIES = 4


def _bounded(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The client waits for ever by default, and up to 20 s between two tries. `timeout` is for a call with all its tries."""
    whole_s = float(settings.get("timeout", 10))
    pauses_ms = int(whole_s * 1000 / (2 * _TRIES))
    return {
        **settings,
        "timeout": whole_s / (2 * _TRIES),
        "max.retries": _TRIES - 1,
        "retries.wait.ms": pauses_ms // 4,
        "retries.max.wait.ms": pauses_ms,
    }


def key_subject(topic: str) -> str:
    return f"{topic}-key"


def value_subject(topic: str) -> str:
    return f"{topic}-value"


class Registry:
    """Confluent's client, bounded, with its errors sorted and what is known remembered.

    `settings` are the client's own properties: `url`, `basic.auth.user.info`, `ssl.*`, `bearer.auth.*`; `timeout` bounds a call with its retries.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._ids: dict[tuple[str, str], int] = {}
        self._schemas: dict[int, str] = {}
        self._url = settings.get("url", "")
        try:
            self._client = SchemaRegistryClient(_bounded(settings))
        except (ValueError, TypeError, OSError) as error:
            raise UsageError(
                f"the registry's settings are wrong: {error}; see registry in the configuration"
            ) from error

    def close(self) -> None:
        self._client.close()

    def register(self, subject: str, schema: str) -> int:
        """The id of the schema under the subject; registers it if it is new there."""
        known = self._ids.get((subject, schema))
        if known is None:
            known = self._ask(subject, lambda: self._client.register_schema(subject, Schema(schema, "AVRO")))
            self._ids[subject, schema] = known
        return known

    def known_id(self, subject: str, schema: str) -> int | None:
        """The id of the schema under the subject if it is registered there; registers nothing."""
        try:
            return self._ask(subject, lambda: self._client.lookup_schema(subject, Schema(schema, "AVRO")).schema_id)
        except _Absent:
            return None

    def schema(self, schema_id: int) -> str:
        """The schema of an id, as JSON."""
        if schema_id not in self._schemas:
            text = self._ask(f"schema {schema_id}", lambda: self._client.get_schema(schema_id).schema_str)
            assert text is not None
            self._schemas[schema_id] = text
        return self._schemas[schema_id]

    def versions(self, subject: str) -> list[str]:
        """All schemas of the subject, the oldest first."""
        try:
            numbers = self._ask(subject, lambda: self._client.get_versions(subject))
            return [self._version(subject, number) for number in numbers]
        except _Absent:
            return []

    def _version(self, subject: str, number: int) -> str:
        text = self._ask(subject, lambda: self._client.get_version(subject, number).schema.schema_str)
        assert text is not None
        return text

    def accepts(self, subject: str, schema: str) -> bool:
        """Whether `register` would be let through: the subject has no version yet, or the new one is compatible."""
        try:
            return self._ask(subject, lambda: self._client.test_compatibility(subject, Schema(schema, "AVRO")))
        except _Absent:
            return True

    def _ask(self, about: str, question: Callable[[], _T]) -> _T:
        try:
            return question()
        except SchemaRegistryError as error:
            raise self._sorted(error, about) from error
        except httpx.TransportError as error:
            raise Unreachable(
                f"the registry at {self._url} does not answer: {error or type(error).__name__}; check its address, and that it runs"
            ) from error
        except (OAuthTokenError, httpx.HTTPError, json.JSONDecodeError) as error:
            raise Unreachable(
                f"the registry at {self._url} does not answer as one: {error}; check its address and bearer.auth.* in the configuration"
            ) from error

    def _sorted(self, error: SchemaRegistryError, about: str) -> TwofoldError:
        match error.http_status_code:
            case 409:
                return Refused(
                    f"the registry refuses the new schema of {about}: {error.error_message}",
                    at_stake="readers of the topic could no longer read it; no row was written with the new schema",
                    repair=f"set the subject {about} to another compatibility (NONE lets everything through) and start again; to undo the change in PostgreSQL is not enough, for a row made under it waits to be published",
                )
            case 422:
                return Refused(
                    f"the registry does not take the schema of {about} for valid: {error.error_message}",
                    at_stake="rows written with it could not be read; none was",
                    repair="report this with the table's definition: Twofold made a schema that the registry cannot parse",
                )
            case 401 | 403:
                return MissingGround(
                    f"the registry at {self._url} does not let us in (HTTP {error.http_status_code}): check basic.auth.user.info or bearer.auth.*,"
                    f" and that the account may read and write {about}"
                )
            case 404:
                return _Absent(f"the registry at {self._url} does not know {about}")
            case _:
                return Unreachable(f"the registry at {self._url} fails: {error}; look into its log")


class _Absent(MissingGround):
    """The registry answers that it has no such thing."""
