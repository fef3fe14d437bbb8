"""Describes a publication's tables as Relation messages, as the stream would describe them now.

So topics and schemas exist before the first row arrives.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from twofold.source.connection import PlainConnection, connect
from twofold.source.diagnosis import missing_publication
from twofold.source.messages import Relation, RelationColumn
from twofold_avro.shapes import ReplicaIdentity

REPLICA_IDENTITIES: dict[str, ReplicaIdentity] = {"d": "default", "i": "index", "f": "full", "n": "nothing"}

# Read from the catalog's own tables: on 18 the view pg_publication_tables opens every published
# table, and would wait for a prepared transaction that holds one of them.
# From 18 on, a primary key that some partition lacks is still the root's identity.
# Before 18 the stream omits generated columns; from 18 on the publication decides about them.
# A partitioned table is streamed as itself, or as the leaves below it.
# From 19 on, a row of pg_publication_rel may except a table and all its partitions.
_TABLES = """
WITH RECURSIVE publication AS (
    SELECT p.oid, p.puballtables, p.pubviaroot, coalesce(to_jsonb(p) ->> 'pubgencols', 'n') AS gencols
      FROM pg_catalog.pg_publication p WHERE p.pubname = %s
), listed AS (
    SELECT r.prrelid AS oid, r.prattrs::smallint[] AS attnums, (to_jsonb(r) ->> 'prexcept')::boolean IS TRUE AS is_excepted
      FROM publication p JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid
), excepted AS (
    SELECT oid FROM listed WHERE is_excepted
    UNION
    SELECT i.inhrelid FROM excepted JOIN pg_catalog.pg_inherits i ON i.inhparent = excepted.oid
      JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid AND c.relispartition
), named AS (
    SELECT oid, attnums FROM listed WHERE NOT is_excepted
    UNION ALL
    SELECT c.oid, NULL
      FROM publication p
      JOIN pg_catalog.pg_class c ON c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND c.oid >= 16384
      LEFT JOIN pg_catalog.pg_publication_namespace n ON n.pnpubid = p.oid AND n.pnnspid = c.relnamespace
     WHERE (p.puballtables OR n.oid IS NOT NULL) AND c.oid NOT IN (SELECT oid FROM excepted)
), below AS (
    SELECT i.inhrelid AS oid FROM named JOIN pg_catalog.pg_inherits i ON i.inhparent = named.oid
      JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid AND c.relispartition
    UNION
    SELECT i.inhrelid FROM below JOIN pg_catalog.pg_inherits i ON i.inhparent = below.oid
), streamed AS (
    SELECT named.oid FROM named, publication p WHERE p.pubviaroot AND named.oid NOT IN (SELECT oid FROM below)
    UNION
    SELECT leaf.oid
      FROM publication p, (SELECT oid FROM named UNION SELECT oid FROM below) leaf
      JOIN pg_catalog.pg_class c ON c.oid = leaf.oid AND c.relkind = 'r'
     WHERE NOT p.pubviaroot
)
SELECT c.oid::bigint, s.nspname::text, c.relname::text, c.relreplident::text,
       ARRAY(SELECT ROW(a.attname, a.atttypid::bigint, a.atttypmod,
                        c.relreplident = 'f' OR a.attnum = ANY (coalesce(k.attnums, '{{}}')))
               {sent}) AS columns{more}
  FROM publication p
  CROSS JOIN streamed
  JOIN pg_catalog.pg_class c ON c.oid = streamed.oid
  JOIN pg_catalog.pg_namespace s ON s.oid = c.relnamespace
  LEFT JOIN LATERAL (SELECT attnums FROM named WHERE named.oid = c.oid AND named.attnums IS NOT NULL LIMIT 1) l ON true
  LEFT JOIN LATERAL (
       SELECT (i.indkey::smallint[])[0:i.indnkeyatts - 1] AS attnums
         FROM pg_catalog.pg_index i
        WHERE i.indrelid = c.oid
          AND CASE c.relreplident WHEN 'i' THEN i.indisreplident
                   WHEN 'd' THEN i.indisprimary AND i.indimmediate
                                 AND (i.indisvalid OR c.relkind = 'p' AND current_setting('server_version_num')::int >= 180000) END
       ) k ON true
 WHERE s.nspname NOT IN ('pg_catalog', 'information_schema'){which}
 ORDER BY 2, 3
"""

_SENT = """FROM pg_catalog.pg_attribute a
              WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
                AND CASE WHEN l.attnums IS NULL THEN a.attgenerated IN ('', replace(p.gencols, 'n', ''))
                         ELSE a.attnum = ANY (l.attnums) END
              ORDER BY a.attnum"""
_NUMBERS = f""",
       ARRAY(SELECT a.attnum::int {_SENT}) AS numbers"""

_FILTER = """,
       (SELECT pg_catalog.pg_get_expr(r.prqual, r.prrelid) FROM pg_catalog.pg_publication_rel r
         WHERE r.prpubid = p.oid AND r.prrelid = c.oid
           AND NOT EXISTS (SELECT FROM pg_catalog.pg_publication_namespace n
                            WHERE n.pnpubid = p.oid AND n.pnnspid = c.relnamespace)) AS row_filter,
       c.relkind = 'p' AS partitioned"""

# The indexes that can serve as a message key, with their columns in the index's order. The operator
# class and the collation of an index may be others than its column's: values that are equal to the
# column's own are different in such an index, so only its order tells rows apart. The index of a
# key WITHOUT OVERLAPS is a GiST, which orders nothing: there the types' own order tells rows apart.
# The last key of a load has an enum's label, which may be renamed: the labels belong to the order.
_KEYS = """,
       (SELECT jsonb_agg((
           SELECT jsonb_agg(jsonb_build_object(
                      'column', a.attname, 'type', pg_catalog.format_type(base.oid, base.modifier),
                      'cast', CASE WHEN before.oprname IS NOT NULL AND NOT usual.is_so AND y.typtype <> 'p' THEN pg_catalog.format_type(y.oid, NULL) END,
                      'collation', CASE WHEN e.coll <> a.attcollation THEN jsonb_build_array(f.nspname, l.collname) END,
                      'schema', coalesce(m.nspname, 'pg_catalog'), 'before', coalesce(before.oprname, '<'),
                      'behind', coalesce(behind.oprname, '>'), 'equal', coalesce(equal.oprname, '='),
                      'identity', concat_ws(' ', a.attname, y.typname, m.nspname, behind.oprname, f.nspname, l.collname, labels.md5)) ORDER BY e.place)
             FROM unnest(i.indkey::smallint[], i.indclass::oid[], i.indcollation::oid[])
                  WITH ORDINALITY e(attnum, opclass, coll, place)
             JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum = e.attnum
             CROSS JOIN LATERAL (
                  WITH RECURSIVE below AS (
                      SELECT a.atttypid AS oid, a.atttypmod AS modifier
                      UNION ALL
                      SELECT t.typbasetype, t.typtypmod FROM below JOIN pg_catalog.pg_type t ON t.oid = below.oid WHERE t.typtype = 'd')
                  SELECT below.oid, below.modifier FROM below JOIN pg_catalog.pg_type t ON t.oid = below.oid WHERE t.typtype <> 'd') base
             JOIN pg_catalog.pg_opclass k ON k.oid = e.opclass
             JOIN pg_catalog.pg_type y ON y.oid = k.opcintype
             CROSS JOIN LATERAL (
                  SELECT k.opcdefault AND (k.opcintype = base.oid OR NOT EXISTS (
                             SELECT FROM pg_catalog.pg_opclass d
                              WHERE d.opcmethod = k.opcmethod AND d.opcdefault AND d.opcintype = base.oid)) AS is_so) usual
             LEFT JOIN pg_catalog.pg_am tree ON tree.oid = k.opcmethod AND tree.amname = 'btree'
             LEFT JOIN pg_catalog.pg_amop x ON tree.oid IS NOT NULL AND x.amopfamily = k.opcfamily AND x.amopstrategy = 1
                  AND x.amoplefttype = k.opcintype AND x.amoprighttype = k.opcintype
             LEFT JOIN pg_catalog.pg_amop w ON tree.oid IS NOT NULL AND w.amopfamily = k.opcfamily AND w.amopstrategy = 3
                  AND w.amoplefttype = k.opcintype AND w.amoprighttype = k.opcintype
             LEFT JOIN pg_catalog.pg_amop v ON tree.oid IS NOT NULL AND v.amopfamily = k.opcfamily AND v.amopstrategy = 5
                  AND v.amoplefttype = k.opcintype AND v.amoprighttype = k.opcintype
             LEFT JOIN pg_catalog.pg_operator before ON before.oid = x.amopopr
             LEFT JOIN pg_catalog.pg_operator equal ON equal.oid = w.amopopr
             LEFT JOIN pg_catalog.pg_operator behind ON behind.oid = v.amopopr
             LEFT JOIN pg_catalog.pg_namespace m ON m.oid = behind.oprnamespace
             LEFT JOIN pg_catalog.pg_collation l ON l.oid = e.coll
             LEFT JOIN pg_catalog.pg_namespace f ON f.oid = l.collnamespace
             CROSS JOIN LATERAL (
                  SELECT md5(string_agg(u.enumlabel, ',' ORDER BY u.enumsortorder)) FROM pg_catalog.pg_enum u WHERE u.enumtypid = base.oid) labels
            WHERE e.place <= i.indnkeyatts) ORDER BY i.indisprimary DESC, i.indexrelid)
          FROM pg_catalog.pg_index i
         WHERE i.indrelid = c.oid AND i.indisunique AND i.indexprs IS NULL AND i.indpred IS NULL) AS keys
"""


@dataclass(frozen=True, slots=True)
class KeyOrder:
    """A column of an index, and how the index compares its values."""

    column: str
    type: str
    """The column's type below its domains, as SQL writes it."""
    cast: str | None
    """The type as which the index compares, if its operator class is not the type's own."""
    collation: tuple[str, str] | None
    """The index's collation by schema and name, if it is not the column's."""
    schema: str
    before: str
    behind: str
    equal: str
    """The operators, which are in `schema`."""
    identity: str
    """The order as a text: two orders differ if their texts differ."""

    @property
    def is_usual(self) -> bool:
        """Whether ORDER BY and comparisons of the plain column have this order."""
        return self.cast is None and self.collation is None and (self.schema, self.behind) == ("pg_catalog", ">")


@dataclass(frozen=True, slots=True)
class DescribedTable:
    """A published table, with everything that copying needs beside its relation."""

    relation: Relation
    row_filter: str | None
    partitioned: bool
    unique: tuple[tuple[KeyOrder, ...], ...]
    """The columns of each unique index, in its order."""
    numbers: tuple[int, ...] = ()
    """Those of the relation's columns: a later one may have a former one's name and type."""

    def key_order(self, key: frozenset[str]) -> tuple[KeyOrder, ...]:
        """Return the key's columns in the order of an index that has exactly these columns: no two
        rows are equal in that order.
        """
        return next((each for each in self.unique if {order.column for order in each} == key), ()) or tuple(
            next(order for each in self.unique for order in each if order.column == name) for name in sorted(key)
        )


def published_tables(conninfo: str, publication: str) -> tuple[Relation, ...]:
    """Return the publication's present tables.

    Refused: the publication does not exist. Recreating it does not help, because the slot is older.
    """
    with connect(conninfo) as connection:
        return published_in(connection, publication)


def publication_exists(connection: PlainConnection, publication: str) -> bool:
    query = "SELECT FROM pg_catalog.pg_publication WHERE pubname = %s"
    return connection.execute(query, (publication,)).fetchone() is not None


def published_in(connection: PlainConnection, publication: str) -> tuple[Relation, ...]:
    """Return the same as `published_tables`, over an open connection."""
    if not publication_exists(connection, publication):
        raise missing_publication(f"{publication!r} does not exist in this database")
    rows = connection.execute(_TABLES.format(sent=_SENT, more="", which=""), (publication,)).fetchall()
    return tuple(map(_relation, rows))


def describe(connection: PlainConnection, publication: str, schema: str, table: str) -> DescribedTable | None:
    """Describe one table as the publication has it, in the connection's present snapshot.

    None: the publication does not have the table.
    """
    query = _TABLES.format(sent=_SENT, more=_FILTER + _NUMBERS + _KEYS, which=" AND s.nspname = %s AND c.relname = %s")
    row = connection.execute(query, (publication, schema, table)).fetchone()
    if row is None:
        return None
    row_filter, partitioned, numbers, keys = row[5:]
    return DescribedTable(_relation(row[:5]), row_filter, partitioned, tuple(map(_key, keys or ())), tuple(numbers))


def describe_filters(connection: PlainConnection, publication: str) -> tuple[DescribedTable, ...]:
    """Describe all tables as the publication has them, without their keys."""
    rows = connection.execute(_TABLES.format(sent=_SENT, more=_FILTER, which=""), (publication,)).fetchall()
    return tuple(DescribedTable(_relation(row[:5]), row[5], row[6], ()) for row in rows)


def _key(columns: Iterable[dict[str, Any]]) -> tuple[KeyOrder, ...]:
    return tuple(KeyOrder(**{**each, "collation": each["collation"] and tuple(each["collation"])}) for each in columns)


def _relation(row: tuple[Any, ...]) -> Relation:
    oid, schema, table, identity, columns = row
    return Relation(
        oid,
        schema,
        table,
        REPLICA_IDENTITIES[identity],
        tuple(
            RelationColumn(name, int(typ), int(typmod), in_identity in {True, "t"})
            for name, typ, typmod, in_identity in columns
        ),
    )
