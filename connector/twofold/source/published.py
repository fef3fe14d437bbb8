"""The tables of a publication as Relation messages, as the stream would describe them now: so that topics and schemas are there before the first row is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from twofold.errors import MissingGround
from twofold.source.connection import Plain, connect
from twofold.source.messages import Relation, RelationColumn
from twofold_avro.shapes import ReplicaIdentity

_IDENTITIES: dict[str, ReplicaIdentity] = {"d": "default", "i": "index", "f": "full", "n": "nothing"}

# Before 18 the stream leaves generated columns out, whatever the view says.
_TABLES = """
SELECT c.oid::bigint, p.schemaname::text, p.tablename::text, c.relreplident::text,
       ARRAY(SELECT ROW(a.attname, a.atttypid::bigint, a.atttypmod,
                        c.relreplident = 'f' OR a.attnum = ANY (coalesce(k.attnums, '{{}}')))
               FROM pg_catalog.pg_attribute a
              WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attname = ANY (p.attnames)
                AND (a.attgenerated = '' OR pg_catalog.current_setting('server_version_num')::int >= 180000)
              ORDER BY a.attnum) AS columns{more}
  FROM pg_catalog.pg_publication_tables p
  JOIN pg_catalog.pg_namespace n ON n.nspname = p.schemaname
  JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
  LEFT JOIN LATERAL (
       SELECT i.indkey::smallint[] AS attnums
         FROM pg_catalog.pg_index i
        WHERE i.indrelid = c.oid AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident END
       ) k ON true
 WHERE p.pubname = %s{which}
 ORDER BY 2, 3
"""

# The indexes that can serve as a message key, each with its columns in the index's order.
_MORE = """,
       p.rowfilter, c.relkind = 'p' AS partitioned,
       (SELECT jsonb_object_agg(a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod))
          FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) AS types,
       (SELECT jsonb_agg((SELECT jsonb_agg(a.attname ORDER BY k.place)
                            FROM unnest(i.indkey::smallint[]) WITH ORDINALITY k(attnum, place)
                            JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum
                           WHERE k.place <= i.indnkeyatts) ORDER BY i.indisprimary DESC)
          FROM pg_catalog.pg_index i
         WHERE i.indrelid = c.oid AND i.indisunique AND i.indexprs IS NULL AND i.indpred IS NULL) AS keys,
       greatest(c.reltuples, 0)::bigint AS estimate
"""


@dataclass(frozen=True, slots=True)
class Described:
    """A published table, and what copying it needs beside its relation."""

    relation: Relation
    row_filter: str | None
    partitioned: bool
    types: dict[str, str]
    """Each column's type as SQL writes it."""
    unique: tuple[tuple[str, ...], ...]
    """The columns of each unique index, in its order."""
    estimate: int
    """How many rows the planner believes it to have."""

    def key_order(self, key: frozenset[str]) -> tuple[str, ...]:
        """The key's columns in the order of an index that has just these."""
        return next((columns for columns in self.unique if frozenset(columns) == key), tuple(sorted(key)))


def published_tables(conninfo: str, publication: str) -> tuple[Relation, ...]:
    """What the publication holds now."""
    with connect(conninfo) as connection:
        found = connection.execute(
            "SELECT FROM pg_catalog.pg_publication WHERE pubname = %s", (publication,)
        ).fetchone()
        if found is None:
            raise MissingGround(
                f"publication {publication!r} does not exist in this database: run twofold init, or correct source.publication"
            )
        rows = connection.execute(_TABLES.format(more="", which=""), (publication,)).fetchall()
    return tuple(map(_relation, rows))


def describe(connection: Plain, publication: str, schema: str, table: str) -> Described | None:
    """One table as the publication has it, in the connection's present snapshot; None if it does not."""
    query = _TABLES.format(more=_MORE, which=" AND p.schemaname = %s AND p.tablename = %s")
    row = connection.execute(query, (publication, schema, table)).fetchone()
    if row is None:
        return None
    row_filter, partitioned, types, keys, estimate = row[5:]
    unique = tuple(tuple(columns) for columns in keys or ())
    return Described(_relation(row[:5]), row_filter, partitioned, types, unique, estimate)


def _relation(row: tuple[Any, ...]) -> Relation:
    oid, schema, table, identity, columns = row
    return Relation(
        oid,
        schema,
        table,
        _IDENTITIES[identity],
        tuple(
            RelationColumn(name, int(typ), int(typmod), in_identity in {True, "t"})
            for name, typ, typmod, in_identity in columns
        ),
    )
