"""The schema registry: each schema version is registered once, under TopicNameStrategy's subjects,
and never on the row path.

An outage raises `Unreachable`, and so does a mode that forbids new schemas: the run ends before
anything is written with the new schema, and goes on when the registry is back. A schema that the
subject's compatibility forbids raises `Refused` with the registry's own reason, before a row is
written with it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from twofold.errors import Refused, SetupError, TwofoldError, Unreachable, UsageError
from twofold.kafka.names import Names
from twofold_avro.schemas import canonical, fixed
from twofold_common.registry_http import (
    RegistryAway,
    RegistryHttp,
    RegistryRefusal,
    authorization,
    certificate_remedy,
    subject_path,
)


@dataclass(frozen=True, slots=True)
class SubjectSchema:
    """A schema that somebody has registered."""

    id: int
    text: str
    kind: str
    """`AVRO`, or another kind of the registry's."""
    refers: bool
    """Whether the schema refers to schemas of other subjects."""


def key_subject(topic: str) -> str:
    return f"{topic}-key"


def value_subject(topic: str) -> str:
    return f"{topic}-value"


class Registry:
    """The part of Confluent's API that the connector needs. The client remembers answers. Several
    threads may use it.
    """

    def __init__(
        self,
        url: str,
        timeout_s: float = 10.0,
        *,
        credentials: Callable[[], Mapping[str, str]] = authorization,
        credentials_expire: bool = False,
        ca_file: Path | None = None,
    ) -> None:
        """A call takes at most `timeout_s`, with all its tries. `credentials`: see RegistryHttp."""
        self._ids: dict[tuple[str, str], int] = {}
        self._schemas: dict[int, str] = {}
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise UsageError(f"registry.url is {url!r}, and must be http://host:port or https://host:port")
        try:
            self._http = RegistryHttp(
                url,
                credentials=credentials,
                credentials_expire=credentials_expire,
                ca_file=ca_file,
                request_timeout_s=timeout_s / 5,
                patience_s=timeout_s / 2,
            )
        except OSError as error:
            raise UsageError(f"registry.ca_file {ca_file} cannot be used: {error}") from error

    def register(self, subject: str, schema: str) -> int:
        """Return the schema's id under the subject, after registering it if it is new there."""
        known = self._ids.get((subject, schema))
        if known is None:
            known = int(self._ask(subject, f"{subject_path(subject)}/versions", _body(schema))["id"])
            other = full_name(self._schemas.get(known, schema))
            if other != full_name(schema):
                raise _id_given_again(known, subject, other)
            self._ids[subject, schema] = known
            self._schemas[known] = schema
        return known

    def known_id(self, subject: str, schema: str) -> int | None:
        """Return the schema's id if it is registered under the subject; register nothing."""
        known = self._ids.get((subject, schema))
        if known is None:
            try:
                known = int(self._ask(subject, subject_path(subject), _body(schema))["id"])
            except NotRegistered:
                return None
            self._ids[subject, schema] = known
            self._schemas[known] = schema
        return known

    def schema(self, schema_id: int, *, again: bool = False) -> str:
        """Return the schema of an id as JSON; an id that is known is asked for only `again`."""
        if again or schema_id not in self._schemas:
            answer = self._ask(f"schema {schema_id}", f"/schemas/ids/{schema_id}", is_registered=again)
            self._schemas[schema_id] = str(answer["schema"])
        return self._schemas[schema_id]

    def latest(self, subject: str) -> SubjectSchema | None:
        """Ask for the newest schema of the subject; None without one."""
        try:
            answer = self._ask(subject, f"{subject_path(subject)}/versions/latest")
        except NotRegistered:
            return None
        kind = str(answer.get("schemaType") or "AVRO")
        return SubjectSchema(int(answer["id"]), str(answer["schema"]), kind, bool(answer.get("references")))

    def has_latest(self, subject: str, schema_id: int) -> bool:
        """Return whether this id's schema is the subject's newest; it is known then."""
        latest = self.latest(subject)
        if latest is None or latest.id != schema_id:
            return False
        self._schemas[schema_id] = latest.text
        self._ids[subject, canonical(json.loads(latest.text))] = schema_id
        return True

    def versions(self, subject: str) -> list[str]:
        """Return all schemas of the subject, the oldest first."""
        try:
            versions = f"{subject_path(subject)}/versions"
            return [str(self._ask(subject, f"{versions}/{n}")["schema"]) for n in self._ask(subject, versions)]
        except NotRegistered:
            return []

    def withdraw(self, subject: str) -> None:
        """Delete the subject if it exists. Its schemas stay readable by their ids."""
        try:
            self._ask(subject, subject_path(subject), method="DELETE")
        except NotRegistered:
            return
        finally:
            for of, schema in tuple(self._ids):  # another thread may add some
                if of == subject:
                    del self._ids[of, schema]

    def _ask(
        self,
        about: str,
        path: str,
        body: bytes | None = None,
        *,
        method: str | None = None,
        is_registered: bool = False,
    ) -> Any:
        try:
            return self._http.ask(path, body, method=method, is_registered=is_registered)
        except RegistryAway as error:
            remedy = certificate_remedy(error, address="registry.url", authorities="registry.ca_file")
            remedy = remedy or "start the registry, or correct registry.url (Apicurio's ends with /apis/ccompat/v7)"
            raise Unreachable(f"the registry at {self._http.url} does not answer: {error}; remedy: {remedy}") from error
        except RegistryRefusal as error:
            raise self._error_of(error, about) from error

    def _put(self, path: str, setting: str, value: str) -> str:
        """Return the command that gives a setting of the registry this value."""
        return f"""curl -X PUT -H 'Content-Type: application/vnd.schemaregistry.v1+json' -d '{{"{setting}": "{value}"}}' {self._http.url}/{path}"""

    def _error_of(self, refusal: RegistryRefusal, about: str) -> TwofoldError:
        if refusal.is_absent:
            return NotRegistered(f"the registry at {self._http.url} does not have {about}")
        match refusal.status:
            case 409 | 422:
                return self._schema_error_of(refusal, about)
            case 401 if self._http.credentials_expire:
                return Unreachable(
                    f"the registry at {self._http.url} denies access (HTTP 401); remedy: if this stays so, correct registry.username and its password, or the token"
                )
            case 401 | 403:
                return SetupError(
                    f"the registry at {self._http.url} denies access (HTTP {refusal.status}): check registry.username and registry.password_file, or registry.token_file,"
                    f" and that the account may read and write {about}"
                )
            case status:
                redirects = 300 <= status < 400
                remedy = "if you trust that address, set registry.url to it" if redirects else "look into its log"
                return (SetupError if redirects else Unreachable)(
                    f"the registry at {self._http.url} answers HTTP {status}: {refusal.reason}; remedy: {remedy}"
                )

    def _schema_error_of(self, refusal: RegistryRefusal, subject: str) -> TwofoldError:
        """Return the error of a schema that the registry does not register."""
        if refusal.is_forbidden_by_mode:
            return Unreachable(
                f"the registry at {self._http.url} accepts no schema of {subject} in its mode: {refusal.reason};"
                f" remedy: {self._put(f'mode/{subject}', 'mode', 'READWRITE')}"
            )
        if refusal.status == 409:
            allow = self._put(f"config/{subject}", "compatibility", "NONE")
            return SchemaRefused(
                f"the registry refuses the new schema of {subject}: {refusal.reason}",
                at_stake="readers of the topic could no longer read it; no row was written with the new schema",
                repair=f"set the subject {subject} to another compatibility, then restart (NONE accepts every schema: {allow}); undoing the change in PostgreSQL is not enough, because a row made under it waits to be published",
            )
        return SchemaRefused(
            f"the registry says that the schema of {subject} is not valid: {refusal.reason}",
            at_stake="rows written with it could not be read; none was written",
            repair="report this with the table's definition: Twofold made a schema that the registry cannot parse",
        )


@cache
def full_name(schema: str) -> str:
    """Return the full name of a record; of other schemas, words in its place."""
    try:
        found = json.loads(schema)
    except ValueError:  # not Avro
        found = None
    parts = (found.get("namespace"), found.get("name")) if isinstance(found, dict) else ()
    return ".".join(map(str, filter(None, parts))) or "another schema"


def _id_given_again(schema_id: int, subject: str, other: str) -> Refused:
    return Refused(
        f"the registry has the new schema of {subject} as id {schema_id}; it was {other}",
        at_stake="rows with this id are in Kafka: readers would read them by the new schema",
        repair="restore the registry with its former ids, then restart: it was set back while the connector ran",
    )


def _body(schema: str) -> bytes:
    return json.dumps({"schema": schema, "schemaType": "AVRO"}).encode()


class SchemaRefused(Refused):
    """The registry refuses a table's schema, and with it the rows of that shape."""


class NotRegistered(SetupError):
    """The registry answers that the subject or schema does not exist."""


@dataclass(frozen=True, slots=True)
class SchemaIds:
    """The registry's ids of the fixed records."""

    commit: int
    progress: int
    pin: int
    prepared: int
    frontier: int | None = None
    """The id of the frontier's schema; None: the connector is in no source group."""


def register_fixed(registry: Registry, names: Names, *, in_group: bool = False) -> SchemaIds:
    """Register the fixed records' schemas.

    The progress topic holds two kinds of records, so the pin's subject contains its name too.
    """
    return SchemaIds(
        commit=registry.register(value_subject(names.commits), canonical(fixed("commit"))),
        progress=registry.register(value_subject(names.progress), canonical(fixed("progress"))),
        pin=registry.register(f"{names.progress}-twofold.Pin", canonical(fixed("pin"))),
        prepared=registry.register(value_subject(names.prepared), canonical(fixed("prepared"))),
        frontier=registry.register(value_subject(names.frontiers), canonical(fixed("frontier"))) if in_group else None,
    )
