"""What a table looks like: a Relation message, with types and key resolved from the catalog.

The message is of the change's own time, the catalog is of now: it may be ahead. So the columns, their order, types and the replica identity come from
the message alone; the catalog only says what the type oids mean, and, for replica identity full, which unique index serves as the key. Where the catalog
has moved on in the meantime:
- a type that was dropped is what it last was here, else what its Type message called it, as a base type: its values are then carried as text;
- a table that was dropped, or one whose key's columns are no longer among the message's, keeps the key that was last seen for that table, else has none. A key
  that differs from the one pinned in the progress record is refused downstream, so this never changes a topic silently. A table that is there and has no
  key has none: what was its key may tell its rows apart no more.

Shapes are kept by relation, made anew by each Relation message, and all is forgotten on reconnect by making a new Catalog. One thread uses it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from twofold.source.connection import PlainConnection, connect
from twofold.source.messages import Relation, Type
from twofold.source.published_tables import describe
from twofold_avro.shapes import ColumnShape, TableShape, TypeKind, TypeShape

_TYPES = """
SELECT t.oid::bigint, n.nspname::text, t.typname::text, t.typtype::text,
       t.typinput = 'pg_catalog.array_in'::regproc AS is_array,
       t.typtypmod,
       CASE WHEN t.typinput = 'pg_catalog.array_in'::regproc THEN t.typelem
            WHEN t.typtype = 'd' THEN t.typbasetype
            WHEN t.typtype = 'r' THEN r.rngsubtype
            WHEN t.typtype = 'm' THEN m.rngtypid END::bigint AS element,
       ARRAY(SELECT e.enumlabel::text FROM pg_catalog.pg_enum e WHERE e.enumtypid = t.oid ORDER BY e.enumsortorder) AS labels,
       coalesce((SELECT jsonb_agg(jsonb_build_array(a.attname, a.atttypid::bigint, a.atttypmod) ORDER BY a.attnum)
                   FROM pg_catalog.pg_attribute a
                  WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped), '[]') AS fields
  FROM pg_catalog.pg_type t
  JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
  LEFT JOIN pg_catalog.pg_range r ON r.rngtypid = t.oid
  LEFT JOIN pg_catalog.pg_range m ON m.rngmultitypid = t.oid
 WHERE t.oid = ANY (%s::oid[])
"""

_KEYS = """
SELECT ARRAY(SELECT a.attname::text
               FROM pg_catalog.pg_attribute a
              WHERE a.attrelid = i.indrelid AND a.attnum = ANY ((i.indkey::smallint[])[0:i.indnkeyatts - 1])) AS columns
  FROM pg_catalog.pg_index i
  JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
 WHERE i.indrelid = %s AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_attribute a
                    WHERE a.attrelid = i.indrelid AND a.attnum = ANY ((i.indkey::smallint[])[0:i.indnkeyatts - 1])
                      AND NOT a.attnotnull)
 ORDER BY i.indisprimary DESC, i.indnkeyatts, c.relname
"""


@dataclass(frozen=True, slots=True)
class _TypeRow:
    """A type as the catalog has it, not yet joined with the types that it is made of."""

    oid: int
    schema: str
    name: str
    kind: TypeKind
    base_typmod: int
    element: int | None
    labels: tuple[str, ...]
    fields: tuple[tuple[str, int, int], ...]

    def parts(self) -> Iterable[int]:
        if self.element:
            yield self.element
        for _, oid, _ in self.fields:
            yield oid


_KINDS: dict[str, TypeKind] = {
    "b": "base",
    "d": "domain",
    "e": "enum",
    "c": "composite",
    "r": "range",
    "m": "multirange",
    "p": "pseudo",
}


class Catalog:
    """Resolves Relation messages; connects when it first has to and again when its connection was lost."""

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo
        self._connection: PlainConnection | None = None
        self._types: dict[int, _TypeRow] = {}
        self._shapes: dict[int, TableShape] = {}

    def note_type(self, message: Type) -> None:
        """Remember a Type message's name, for the case that the type is gone from the catalog."""
        if message.oid not in self._types:
            self._types[message.oid] = _TypeRow(message.oid, message.schema, message.name, "base", -1, None, (), ())

    def shape(self, relation: Relation) -> TableShape:
        """The table as `relation` describes it. Asks the catalog each time: the caller keeps what it got until the next Relation."""
        self._load_types({column.type_oid for column in relation.columns})
        key = self._key(relation)
        shape = TableShape(
            oid=relation.oid,
            schema=relation.schema,
            table=relation.table,
            columns=tuple(
                ColumnShape(c.name, self._type(c.type_oid, c.typmod), in_key=c.name in key, in_identity=c.in_identity)
                for c in relation.columns
            ),
            replica_identity=relation.replica_identity,
        )
        self._shapes[relation.oid] = shape
        return shape

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def published(self, publication: str, schema: str, table: str) -> Relation | None:
        """The table that has this name in the publication now."""
        described = describe(self._connected(), publication, schema, table)
        return described.relation if described else None

    def _key(self, relation: Relation) -> frozenset[str]:
        if relation.replica_identity != "full":
            return frozenset(c.name for c in relation.columns if c.in_identity)
        names = {c.name for c in relation.columns}
        keys = self._rows(_KEYS, (relation.oid,))
        for (columns,) in keys:
            if names.issuperset(columns):
                return frozenset(columns)
        if not keys and self._rows("SELECT FROM pg_catalog.pg_class WHERE oid = %s", (relation.oid,)):
            return frozenset()
        last = self._shapes.get(relation.oid)
        known = frozenset(c.name for c in last.key) if last else frozenset()
        return known if known <= names else frozenset()

    def _load_types(self, oids: set[int]) -> None:
        """Read the types and all that they are made of, afresh: a type may have changed under the same oid."""
        seen: set[int] = set()
        while missing := oids - seen:
            rows = [_type_row(row) for row in self._rows(_TYPES, (list(missing),))]
            seen |= missing
            self._types.update((row.oid, row) for row in rows)
            oids = {part for row in rows for part in row.parts()}

    def _type(self, oid: int, typmod: int) -> TypeShape:
        row = self._types.get(oid)
        if row is None:
            return TypeShape(oid, "pg_catalog", f"unknown_{oid}", typmod=typmod)
        inner = row.base_typmod if row.kind == "domain" else typmod if row.kind == "array" else -1
        return TypeShape(
            oid=oid,
            namespace=row.schema,
            name=row.name,
            kind=row.kind,
            typmod=typmod,
            element=self._type(row.element, inner) if row.element else None,
            labels=row.labels,
            fields=tuple((name, self._type(part, modifier)) for name, part, modifier in row.fields),
        )

    def _rows(self, query: str, parameters: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        return self._connected().execute(query, parameters).fetchall()

    def _connected(self) -> PlainConnection:
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._conninfo)
        return self._connection


def _type_row(row: tuple[Any, ...]) -> _TypeRow:
    oid, schema, name, typtype, is_array, base_typmod, element, labels, fields = row
    kind: TypeKind = "array" if is_array and typtype == "b" else _KINDS[typtype]
    parts = tuple((field, part, modifier) for field, part, modifier in fields)
    return _TypeRow(oid, schema, name, kind, base_typmod, element, tuple(labels), parts)
