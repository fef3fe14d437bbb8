"""The fixed records (`schemas/*.avsc`) as values, and their bytes in Kafka.

Needs fastavro: the extra `records`.

    from_bytes(Commit, message)     a framed message as a value
    Commit(...).to_bytes(id)        a value as a framed message

Times are microseconds since 1970 as plain ints, as in the bytes, so nothing is rounded. Pure.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeVar

import fastavro

from twofold_avro import wire
from twofold_avro.errors import MalformedRecord
from twofold_avro.schemas import FixedName, fixed
from twofold_avro.types import Avro


class Record:
    """Base of the records that are messages of their own."""

    __slots__ = ()
    schema_name: ClassVar[FixedName]

    def to_bytes(self, schema_id: int) -> bytes:
        out = io.BytesIO()
        out.write(wire.header(schema_id))
        fastavro.schemaless_writer(out, _codec(self.schema_name), _as_json(self))
        return out.getvalue()

    @classmethod
    def from_bytes(cls, message: bytes, writer: Avro | None = None) -> Self:
        """Return the value.

        `writer` is the schema of the message's id, if it is not this version's own. NotFramed or
        MalformedRecord: the bytes are no such record.
        """
        _, body = wire.unframe(message)
        mine, stream = _codec(cls.schema_name), io.BytesIO(body)
        try:
            theirs = mine if writer is None else fastavro.parse_schema(without_logical_types(writer))
            found: Any = fastavro.schemaless_reader(stream, theirs, mine)
            value = cls(**{name: _as_value(name, value) for name, value in found.items()})
        except Exception as error:  # fastavro's are of a dozen classes, EOFError and IndexError among them
            raise MalformedRecord(f"its bytes are no {cls.__name__} record ({type(error).__name__})") from error
        if left := len(body) - stream.tell():
            raise MalformedRecord(f"its bytes go on behind the {cls.__name__} record, for {left}")
        return value


_R = TypeVar("_R", bound=Record)


class RecordDecoder:
    """A decoder of records of all versions; it asks for their schemas once, by their ids."""

    def __init__(self, schema_of: Callable[[int], str]) -> None:
        self._schema_of = schema_of
        self._writers: dict[tuple[int, type[Record]], Avro] = {}
        """The writer's schema by its id; None if it is our own."""

    def decode(self, kind: type[_R], message: bytes) -> _R:
        """Return the value; the errors are those of `Record.from_bytes`, and the schema's."""
        schema_id, _ = wire.unframe(message)
        if (schema_id, kind) not in self._writers:
            writer = json.loads(self._schema_of(schema_id))
            self._writers[schema_id, kind] = None if writer == fixed(kind.schema_name) else writer
        return kind.from_bytes(message, self._writers[schema_id, kind])


@dataclass(frozen=True, slots=True)
class Range:
    """A stretch of one partition, both ends inclusive."""

    topic: str
    partition: int
    first: int
    last: int
    count: int


class PreparedOutcome(NamedTuple):
    """A prepared transaction that was committed.

    A tuple, because after a backlog a commit record names thousands of them.
    """

    id: str
    xid: int
    gid: str
    prepare_lsn: int
    commit_lsn: int
    committed_at: int
    global_id: str | None = None
    branch: str | None = None


@dataclass(frozen=True, slots=True)
class SkippedRow:
    """A change that a person had skipped, and that its topic lacks."""

    topic: str
    lsn: int
    key: bytes | None = None
    """Its message key without the schema's id."""


@dataclass(frozen=True, slots=True)
class Commit(Record):
    """One committed Kafka transaction."""

    schema_name: ClassVar[FixedName] = "commit"
    sequence: int
    kind: Literal["batch", "prepared", "backfill", "reload"]
    applied_lsn: int
    committed_at: int
    transactions: int
    rows: int
    prepared: tuple[PreparedOutcome, ...] = ()
    ranges: tuple[Range, ...] = ()
    backfilling: tuple[str, ...] = ()
    stream_id: str = ""
    stale: tuple[str, ...] = ()
    skipped: tuple[SkippedRow, ...] = ()


@dataclass(frozen=True, slots=True)
class Progress(Record):
    """The connector's progress."""

    schema_name: ClassVar[FixedName] = "progress"
    applied_lsn: int
    sequence: int
    system_identifier: str
    timeline: int
    database: str
    slot: str
    pool: int
    written_at: int
    stream_id: str = ""
    outcome_lsn: int | None = None
    outcome_at: int | None = None
    selection: str | None = None


@dataclass(frozen=True, slots=True)
class Pin(Record):
    """The facts of a table that must not change while its topic lives."""

    schema_name: ClassVar[FixedName] = "pin"
    schema: str
    table: str
    partitions: int
    key_schema: str | None = None
    key_schema_id: int | None = None
    value_schema_id: int | None = None
    backfill: Literal["ready", "waiting", "running", "paused"] = "ready"
    bound: bytes | None = None
    relation: int | None = None
    stored: str | None = None
    stale: str | None = None
    hidden: str | None = None
    reload_due: bool = False
    command: int = -1
    skipped: tuple[SkippedRow, ...] = ()
    topic_id: str | None = None

    @property
    def oid(self) -> int | None:
        """The oid of the table whose rows the topic has or had."""
        return abs(self.relation) if self.relation else None

    @property
    def is_passed_over(self) -> bool:
        """Whether rows of a table that was gone were passed over.

        A later table of that name restarts the topic.
        """
        return self.relation is not None and self.relation <= 0

    def pass_over(self) -> Pin:
        return replace(self, relation=-(self.oid or 0))


@dataclass(frozen=True, slots=True)
class Prepared(Record):
    """An entry of the in-doubt ledger."""

    schema_name: ClassVar[FixedName] = "prepared"
    xid: int
    gid: str
    prepare_lsn: int
    prepared_at: int
    state: Literal["open", "parked", "committed", "rolled_back"]
    rows: int
    topics: tuple[str, ...] = ()
    global_id: str | None = None
    branch: str | None = None
    sequence: int | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """How far a member of a source group was visible."""

    prefix: str
    sequence: int
    stream_id: str


@dataclass(frozen=True, slots=True)
class BranchInDoubt:
    """A branch that is prepared and has no outcome."""

    global_id: str
    gid: str
    xid: int


@dataclass(frozen=True, slots=True)
class Frontier(Record):
    """How far a member of a source group has seen."""

    schema_name: ClassVar[FixedName] = "frontier"
    group: str
    sequence: int
    lsn: int
    seen: tuple[Seen, ...]
    in_doubt: tuple[BranchInDoubt, ...]
    written_at: int
    gid_patterns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Source:
    """The origin of a change."""

    version: str
    name: str
    db: str
    ts_ms: int
    ts_us: int
    lsn: int
    connector: str = "postgresql"
    schema: str = ""
    table: str = ""
    txId: int | None = None  # noqa: N815 - Debezium's name, and the field's in the schema
    gid: str | None = None
    snapshot: str = "false"
    global_id: str | None = None
    branch: str | None = None
    commit_lsn: int | None = None


@dataclass(frozen=True, slots=True)
class Transaction:
    """A change's place in its transaction."""

    id: str
    total_order: int
    data_collection_order: int


@dataclass(frozen=True, slots=True)
class MessageBody:
    """The content of a logical message."""

    prefix: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Message(Record):
    """A logical message."""

    schema_name: ClassVar[FixedName] = "message"
    source: Source
    message: MessageBody
    transaction: Transaction | None = None
    ts_ms: int | None = None
    op: str = "m"


_INNER: Mapping[str, type[Any]] = {
    "prepared": PreparedOutcome,
    "ranges": Range,
    "skipped": SkippedRow,
    "seen": Seen,
    "in_doubt": BranchInDoubt,
    "source": Source,
    "transaction": Transaction,
    "message": MessageBody,
}
"""The fields that hold records of their own."""


def _as_json(value: Any) -> Any:
    """Return a record as JSON values."""
    if isinstance(value, PreparedOutcome):
        return value._asdict()
    if isinstance(value, tuple):
        return [_as_json(item) for item in value]
    names = _field_names(type(value))
    return {name: _as_json(getattr(value, name)) for name in names} if names else value


def _field_names(kind: type[Any]) -> tuple[str, ...]:
    """Return a record's field names; none for any other type."""
    names = _FIELD_NAMES.get(kind)
    if names is None:
        names = _FIELD_NAMES[kind] = tuple(field.name for field in fields(kind)) if is_dataclass(kind) else ()
    return names


_FIELD_NAMES: dict[type[Any], tuple[str, ...]] = {}
"""Kept, because a commit record has a range for each partition of each of its topics."""


def _as_value(name: str, value: Any) -> Any:
    match value:
        case list():
            return tuple(_as_value(name, item) for item in value)
        case dict():
            return _INNER[name](**value)
        case _:
            return value


@cache
def _codec(name: FixedName) -> Avro:
    return fastavro.parse_schema(without_logical_types(fixed(name)))


def without_logical_types(schema: Avro) -> Avro:
    """Return the schema of the same bytes, read as plain numbers."""
    match schema:
        case dict():
            return {key: without_logical_types(value) for key, value in schema.items() if key != "logicalType"}
        case list():
            return [without_logical_types(branch) for branch in schema]
        case _:
            return schema
