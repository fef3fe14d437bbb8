"""Changes of tables, decoded from their topics' records.

A schema is asked for once, by its id. A column's name and the names in `unchanged` and `special`
are PostgreSQL's; `twofold_reader.values` says which Python types the values have.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, Literal, Protocol

import fastavro

from twofold_avro import wire
from twofold_avro.names import postgres_name
from twofold_avro.schemas import envelope_schema
from twofold_avro.shapes import TableShape
from twofold_common.errors import Refused, TwofoldError
from twofold_common.positions import source_place
from twofold_common.table_names import table_name
from twofold_reader.values import Conversion, find_conversions

Row = dict[str, Any]
Op = Literal["c", "u", "d", "r", "t"]


class KafkaRecord(Protocol):
    """A record of a topic, as confluent_kafka has it."""

    def topic(self) -> str | None: ...
    def partition(self) -> int | None: ...
    def offset(self) -> int | None: ...
    def key(self) -> Any: ...
    def value(self) -> Any: ...


@dataclass(slots=True)
class Change:
    """A change of one row; with `op` t, of all rows of a table."""

    table: str
    """`schema.table`, as PostgreSQL names it."""
    op: Op
    """c insert, u update, d delete, r loaded row, t truncate."""
    before: Row | None
    """The row before, as far as PostgreSQL sends it: its key, or with REPLICA IDENTITY FULL all."""
    after: Row | None
    unchanged: list[str]
    """Columns of `after` whose large values PostgreSQL did not send, because they are unchanged."""
    special: list[dict[str, str]]
    """Values that are None in their columns because Avro's type cannot have them (`infinity`):
    `row` (before or after), `column`, and `text` as PostgreSQL writes it."""
    number: int
    """The ordinal in the transaction, from 1; 0 for a loaded row."""
    _key: bytes | None = field(repr=False)
    _schema: EnvelopeSchema = field(repr=False, compare=False)

    @property
    def key(self) -> Row | None:
        """The columns that identify the row; None for a truncate, and for a table without a key."""
        return None if self._key is None else self._schema.read_key(self._key)

    @property
    def key_bytes(self) -> bytes | None:
        """What tells the row from others of its table and prefix: its key in Avro, without the
        schema.
        """
        return None if self._key is None else self._key[wire.HEADER_BYTES :]

    @property
    def schema(self) -> EnvelopeSchema:
        """The schema of its record: changes with one schema have the same columns."""
        return self._schema


OrderedRow = tuple[int, int, int, str, Change, int]
"""Where its transaction's commit begins, its number there, the partition's index, the transaction,
the change, and the time."""


class EnvelopeSchema:
    """A schema of the registry, ready to decode with; also that of a key."""

    __slots__ = ("columns", "conversions", "names", "parsed", "read_key", "rows")

    def __init__(self, text: str, read_key: Callable[[bytes], Row]) -> None:
        schema = json.loads(text)
        self.read_key = read_key
        self.parsed = fastavro.parse_schema(schema)
        self.rows: Any = None
        """Of an envelope's beginning, the two rows, if `wire.read_origin` reads what is behind."""
        if _without_docs(schema["fields"][2:]) == _KNOWN:
            rows = {"type": "record", "name": "twofold.Rows", "fields": schema["fields"][:2]}
            self.rows = fastavro.parse_schema(rows)
        row = schema["fields"][0]["type"][1] if schema.get("name") == "Envelope" else schema
        self.columns: list[dict[str, Any]] = row["fields"]
        self.conversions: tuple[Conversion, ...] = find_conversions(self.columns)
        names = {each["name"]: postgres_name(each["name"]) for each in self.columns}
        self.names = names if any(name != escaped for escaped, name in names.items()) else None
        """The columns' PostgreSQL names by their Avro names; None if all are the same."""

    def convert(self, row: Row | None) -> Row | None:
        if row is not None:
            for name, value_of in self.conversions:
                if (value := row[name]) is not None:
                    row[name] = value_of(value)
        return row

    def rename(self, row: Row | None) -> Row | None:
        if row is None or self.names is None:
            return row
        return {self.names[name]: value for name, value in row.items()}


class ChangeDecoder:
    """Decodes records with the schemas that `schema_of` has by their ids."""

    def __init__(self, schema_of: Callable[[int], str]) -> None:
        self._schema_of = schema_of
        self._schemas: dict[bytes, EnvelopeSchema] = {}
        self._tables: dict[tuple[str, str], str] = {}

    def read_rows(
        self,
        portions: Iterable[Sequence[KafkaRecord]],
        index: int,
        outcomes: Mapping[str, int],
        *,
        with_truncates: bool,
        as_avro: bool = False,
    ) -> Iterator[OrderedRow]:
        """Yield a partition's changes with their places in the source's order.

        A tombstone is left out: the delete before it says the same. A truncate is in each partition
        of a topic, and only one of them counts. `as_avro`: values are of Avro's types.
        """
        schemas, tables, read = self._schemas, self._tables, fastavro.schemaless_reader
        for record in chain.from_iterable(portions):
            data = record.value()
            if data is None:
                continue
            try:
                head = data[: wire.HEADER_BYTES]
                schema = schemas.get(head) or self._schema(head)
                stream = io.BytesIO(data)
                stream.seek(wire.HEADER_BYTES)
                if schema.rows is not None:
                    pair: Any = read(stream, schema.rows, None)
                    origin = wire.read_origin(data, stream.tell())
                else:
                    pair = read(stream, schema.parsed, None)
                    origin = _origin_of(pair)
                name, table, time_us, lsn, commit_lsn, op, identity, ordinal, unchanged, special = origin
                at, number, transaction = source_place(identity, ordinal, lsn, commit_lsn, outcomes)
                change = Change(
                    tables.get((name, table)) or tables.setdefault((name, table), table_name(name, table)),
                    op,  # type: ignore[arg-type]
                    pair["before"],
                    pair["after"],
                    unchanged,
                    special,
                    number,
                    record.key(),
                    schema,
                )
                if schema.conversions and not as_avro:
                    schema.convert(change.before)
                    schema.convert(change.after)
            except TwofoldError:
                raise
            except Exception as error:  # fastavro's are of a dozen classes, EOFError and IndexError among them
                raise _unreadable(record, error) from error
            if op == "t" and not with_truncates:
                continue
            if schema.names is not None:
                _rename(change, schema)
            yield at, number, index, transaction, change, time_us

    def read_key(self, data: bytes) -> Row:
        """Decode a record's key."""
        schema = self._schemas.get(data[: wire.HEADER_BYTES]) or self._schema(data[: wire.HEADER_BYTES])
        stream = io.BytesIO(data)
        stream.seek(wire.HEADER_BYTES)
        key: Any = fastavro.schemaless_reader(stream, schema.parsed, None)
        return schema.rename(schema.convert(key)) or {}

    def _schema(self, head: bytes) -> EnvelopeSchema:
        schema_id, _ = wire.unframe(head)
        schema = self._schemas[head] = EnvelopeSchema(self._schema_of(schema_id), self.read_key)
        return schema


def _origin_of(envelope: Mapping[str, Any]) -> wire.Origin:
    """Return what `wire.read_origin` reads, of an envelope of another version."""
    source, transaction = envelope["source"], envelope["transaction"]
    return (
        source["schema"],
        source["table"],
        source["ts_us"],
        source["lsn"],
        source["commit_lsn"],
        envelope["op"],
        transaction and transaction["id"],
        transaction["total_order"] if transaction else 0,
        envelope["unchanged"],
        envelope["special"],
    )


def _without_docs(schema: Any) -> Any:
    match schema:
        case dict():
            return {name: _without_docs(value) for name, value in schema.items() if name != "doc"}
        case list():
            return [_without_docs(each) for each in schema]
    return schema


_KNOWN: Final = _without_docs(envelope_schema(TableShape(0, "", "", ()), "")["fields"][2:])


def _rename(change: Change, schema: EnvelopeSchema) -> None:
    names = schema.names or {}
    change.before, change.after = schema.rename(change.before), schema.rename(change.after)
    change.unchanged = [names.get(name, name) for name in change.unchanged]
    change.special = [{**each, "column": names.get(each["column"], each["column"])} for each in change.special]


def _unreadable(record: KafkaRecord, error: Exception) -> Refused:
    return Refused(
        f"the record in {record.topic()} [{record.partition()}] at offset {record.offset()} cannot be read: {error or type(error).__name__}",
        at_stake="the change that it has, and with it a whole transaction",
        repair="find who else writes to this topic; then reload its table (twofold backfill start), and start the reader at 'newest' before that",
    )
