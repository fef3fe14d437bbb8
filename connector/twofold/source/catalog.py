"""Turns Relation messages into table shapes, with types and key resolved from the catalog.

A message describes its change's own time; the catalog describes the present and may be ahead. So
the columns, their order, types and the replica identity come from the message alone. The catalog
only explains the type oids and, for replica identity full, names the unique index that serves as
key. Two rules hold where the catalog has changed in the meantime:

- A dropped type keeps its last known description. Without one, it is a base type with the name from
  its Type message, and its values travel as text.
- A dropped table keeps its last known key, else it has none. So does a table whose key columns are
  missing from the message. A key that differs from the pinned one is refused downstream, so this
  never changes a topic silently. An existing table without a key has none: its former key may no
  longer distinguish rows.

Shapes are kept by relation, and each Relation message replaces one. A reconnect forgets all of
them, because it creates a new Catalog. One thread uses it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from twofold.descriptions.description import Description
from twofold.descriptions.hidden_columns import CatalogColumn, CatalogTable
from twofold.source.connection import PlainConnection, connect
from twofold.source.messages import Relation, Type
from twofold.source.published_tables import describe
from twofold_avro.comments import Comments, with_comments
from twofold_avro.names import avro_name
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

# From 18 on a NOT NULL may be NOT VALID: older rows may still have a null.
_KEYS = """
SELECT ARRAY(SELECT a.attname::text
               FROM pg_catalog.pg_attribute a
              WHERE a.attrelid = i.indrelid AND a.attnum = ANY ((i.indkey::smallint[])[0:i.indnkeyatts - 1])) AS columns
  FROM pg_catalog.pg_index i
  JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
 WHERE i.indrelid = %s AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_attribute a
                    WHERE a.attrelid = i.indrelid AND a.attnum = ANY ((i.indkey::smallint[])[0:i.indnkeyatts - 1])
                      AND (NOT a.attnotnull
                           OR EXISTS (SELECT FROM pg_catalog.pg_constraint t
                                       WHERE t.conrelid = i.indrelid AND t.contype = 'n' AND NOT t.convalidated
                                         AND t.conkey = ARRAY[a.attnum])))
 ORDER BY i.indisprimary DESC, i.indnkeyatts, c.relname
"""

_COLUMNS = """
SELECT coalesce(jsonb_agg(jsonb_build_array(a.attnum, a.attname, a.atttypid::bigint, a.xmin::text::bigint,
                            list.is_possible, a.attgenerated <> '') ORDER BY a.attnum)
                  FILTER (WHERE NOT a.attisdropped), '[]'),
       coalesce(jsonb_agg(a.attnum) FILTER (WHERE a.attisdropped), '[]')
  FROM pg_catalog.pg_class c
  CROSS JOIN LATERAL (
       SELECT EXISTS (SELECT FROM pg_catalog.pg_publication_rel r WHERE r.prrelid = c.oid AND r.prattrs IS NOT NULL)
           OR c.relispartition AND EXISTS (SELECT FROM pg_catalog.pg_publication_rel r WHERE r.prattrs IS NOT NULL) AS is_possible
       ) list
  LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
 WHERE c.oid = %s GROUP BY c.oid
"""

# The nearest first.
_ABOVE = """
WITH RECURSIVE above AS (
    SELECT i.inhparent AS oid, 1 AS height FROM pg_catalog.pg_inherits i
      JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid AND c.relispartition WHERE i.inhrelid = %s
    UNION ALL
    SELECT i.inhparent, above.height + 1 FROM above JOIN pg_catalog.pg_inherits i ON i.inhrelid = above.oid
)
SELECT n.nspname::text, c.relname::text, c.oid::bigint
  FROM above JOIN pg_catalog.pg_class c ON c.oid = above.oid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 ORDER BY height
"""

_TREE = """
WITH RECURSIVE above AS (
    SELECT %s::oid AS oid
    UNION ALL
    SELECT i.inhparent FROM above JOIN pg_catalog.pg_class c ON c.oid = above.oid AND c.relispartition
      JOIN pg_catalog.pg_inherits i ON i.inhrelid = above.oid
), tree AS (
    SELECT oid FROM above
    UNION
    SELECT i.inhrelid FROM tree JOIN pg_catalog.pg_inherits i ON i.inhparent = tree.oid
)
SELECT oid::bigint, oid IN (SELECT oid FROM above) FROM tree
"""

_NAMES = """
SELECT a.attrelid::bigint, a.attnum, a.attname::text
  FROM unnest(%s::oid[], %s::smallint[]) AS asked (oid, number)
  JOIN pg_catalog.pg_attribute a ON a.attrelid = asked.oid AND a.attnum = asked.number AND NOT a.attisdropped
"""


@dataclass(frozen=True, slots=True)
class _TypeRow:
    """A type as the catalog describes it, not yet joined with the types it consists of."""

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


_FIRST_OWN_OID = 16_384
"""The first oid of users' objects. PostgreSQL's own types do not change."""

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
    """The resolver of Relation messages.

    It connects at first use, and again after a lost connection.
    """

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo
        self._connection: PlainConnection | None = None
        self._types: dict[int, _TypeRow] = {}
        self._shapes: dict[int, TableShape] = {}
        self._described: dict[int, Relation] = {}

    def note_type(self, message: Type) -> None:
        """Remember a Type message's name, in case the catalog no longer has the type."""
        if message.oid not in self._types:
            self._types[message.oid] = _TypeRow(message.oid, message.schema, message.name, "base", -1, None, (), ())

    def shape(self, relation: Relation, described: Description | None = None) -> TableShape:
        """Return the table's shape as `relation` describes it.

        Each call queries the catalog: the caller keeps the answer until the next Relation.
        `described`: the table as a DDL message has it, in place of the present catalog.
        """
        self._load_types({column.type_oid for column in relation.columns})
        key = self._key(relation, described)
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
        self._described[relation.oid] = relation
        return shape

    def add_comments(self, shape: TableShape) -> TableShape:
        """Return a shape with its comments: asked for once for each version of a table."""
        return add_comments(self._connected(), shape)

    def described(self, oid: int) -> Relation:
        """Return the last Relation that was resolved under this oid."""
        return self._described[oid]

    def root_of(self, relation: Relation, known: Iterable[int]) -> Relation | None:
        """Return the table under whose name a partition's changes are published, if there is one.

        The stream describes that table too; a root that is not published is never described.
        `known`: the tables above it where its row is, the root first. The present catalog answers
        where they are not known.
        """

        def described(above: Iterable[int]) -> Relation | None:
            return next((self._described[oid] for oid in above if oid in self._described), None)

        return described(known) or described(oid for _, _, oid in reversed(self._rows(_ABOVE, (relation.oid,))))

    def columns_now(self, oid: int) -> CatalogTable | None:
        """Return the numbers of the table's columns; None if there is no such table."""
        rows = self._rows(_COLUMNS, (oid,))
        if not rows:
            return None
        ((columns, dropped),) = rows
        above = tuple((schema, name) for schema, name, _ in self._rows(_ABOVE, (oid,)))
        return CatalogTable(tuple(CatalogColumn(*each) for each in columns), frozenset(dropped), above)

    def tree(self, oid: int) -> dict[int, bool]:
        """Return the tables of the table's partition tree, itself included, and whether each is
        above the table or the table itself.
        """
        return dict(self._rows(_TREE, (oid,)))

    def column_names(self, columns: Iterable[tuple[int, int]]) -> dict[tuple[int, int], str]:
        """Return the present names of these columns, known by table and number."""
        asked = tuple(columns)
        rows = self._rows(_NAMES, ([oid for oid, _ in asked], [number for _, number in asked])) if asked else ()
        return {(oid, number): name for oid, number, name in rows}

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def published(self, publication: str, schema: str, table: str) -> Relation | None:
        """Describe the table that has this name in the publication now; None if there is none."""
        described = describe(self._connected(), publication, schema, table)
        return described.relation if described else None

    def _key(self, relation: Relation, described: Description | None) -> frozenset[str]:
        if relation.replica_identity != "full":
            return frozenset(c.name for c in relation.columns if c.in_identity)
        names = {c.name for c in relation.columns}
        keys = unique_keys(self._connected(), relation.oid) if described is None else described.usable_keys
        for key in keys:
            if names.issuperset(key):
                return key
        if described is not None:
            return frozenset()
        if not keys and self._rows("SELECT FROM pg_catalog.pg_class WHERE oid = %s", (relation.oid,)):
            return frozenset()
        last = self._shapes.get(relation.oid)
        last_key = frozenset(c.name for c in last.key) if last else frozenset()
        return last_key if last_key <= names else frozenset()

    def _load_types(self, oids: set[int]) -> None:
        """Read these types and their parts again: a type may have changed under the same oid."""
        seen: set[int] = set()
        while missing := oids - seen:
            asked = [oid for oid in missing if oid >= _FIRST_OWN_OID or oid not in self._types]
            rows = [_type_row(row) for row in self._rows(_TYPES, (asked,))] if asked else []
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


def unique_keys(connection: PlainConnection, table: int) -> tuple[frozenset[str], ...]:
    """Return the columns of each index that can be the message key under replica identity full."""
    return tuple(frozenset(columns) for (columns,) in connection.execute(_KEYS, (table,)).fetchall())


def _type_row(row: tuple[Any, ...]) -> _TypeRow:
    oid, schema, name, typtype, is_array, base_typmod, element, labels, fields = row
    kind: TypeKind = "array" if is_array and typtype == "b" else _KINDS[typtype]
    parts = tuple((field, part, modifier) for field, part, modifier in fields)
    return _TypeRow(oid, schema, name, kind, base_typmod, element, tuple(labels), parts)


LONGEST_COMMENT = 1000
"""Characters of a comment. A longer one is cut, because every reader has the schema in memory."""

_COMMENTS = """
SELECT a.attname::text, left(d.description, %s)
  FROM pg_catalog.pg_description d
  LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = d.objoid AND a.attnum = d.objsubid AND d.objsubid > 0
 WHERE d.classoid = 'pg_catalog.pg_class'::regclass AND d.objoid = %s
"""


def add_comments(connection: PlainConnection, shape: TableShape) -> TableShape:
    """Return the shape with the comments that the table and its columns have now. The stream has no
    comments, and a COMMENT makes no Relation message.
    """
    rows = connection.execute(_COMMENTS, (LONGEST_COMMENT + 1, shape.oid)).fetchall()
    columns = {avro_name(column): shorten(text) for column, text in rows if column is not None}
    table = next((shorten(text) for column, text in rows if column is None), None)
    return with_comments(shape, Comments(table, columns))


def shorten(comment: str) -> str:
    """Return a comment that is not longer than `LONGEST_COMMENT`."""
    return comment if len(comment) <= LONGEST_COMMENT else comment[: LONGEST_COMMENT - 1] + "…"
