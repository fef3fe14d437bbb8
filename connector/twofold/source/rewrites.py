"""Detects changes that PostgreSQL does not send, by the catalog.

They are a rewritten table, and a column or an attribute that is stored differently. The catalog is
read from time to time and compared with the earlier state; the tables' content is not read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass

import psycopg

from twofold.errors import Unreachable
from twofold.source.connection import PlainConnection, address, connect
from twofold.source.diagnosis import error_text
from twofold.source.flaws import TableFlaw, find_flaws
from twofold.source.messages import Relation
from twofold.source.published_tables import published_in

# Not pg_partition_tree(): it locks the tables that it names. ALTER TABLE changes the xmin of a
# column's row; a rewrite alone (VACUUM FULL, CLUSTER, TRUNCATE) does not.
_STORED = """
WITH RECURSIVE tree AS (
    SELECT oid AS root, oid FROM unnest(%s::oid[]) oid
    UNION ALL
    SELECT tree.root, i.inhrelid FROM tree JOIN pg_catalog.pg_inherits i ON i.inhparent = tree.oid
      JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid AND c.relispartition
)
SELECT tree.root::bigint,
       string_agg(c.oid || ':' || c.relfilenode, ',' ORDER BY c.oid),
       (SELECT string_agg(a.attnum || ':' || a.xmin, ',' ORDER BY a.attnum)
          FROM pg_catalog.pg_attribute a WHERE a.attrelid = tree.root AND a.attnum > 0),
       ARRAY(SELECT a.attnum::int FROM pg_catalog.pg_attribute a
              WHERE a.attrelid = tree.root AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''),
       ARRAY(SELECT a.attnum::int FROM pg_catalog.pg_attribute a
              WHERE a.attrelid = tree.root AND a.attnum > 0 AND a.attgenerated <> ''),
       ARRAY(SELECT t.typrelid || '.' || m.attnum FROM pg_catalog.pg_attribute a
               JOIN pg_catalog.pg_type e ON e.oid = a.atttypid
               JOIN pg_catalog.pg_type t ON t.oid = coalesce(nullif(e.typelem, 0), e.oid) AND t.typtype = 'c'
               JOIN pg_catalog.pg_attribute m ON m.attrelid = t.typrelid AND m.attnum > 0 AND NOT m.attisdropped
              WHERE a.attrelid = tree.root AND a.attnum > 0 AND NOT a.attisdropped),
       ARRAY(SELECT DISTINCT t.typrelid::bigint FROM pg_catalog.pg_attribute a
               JOIN pg_catalog.pg_type e ON e.oid = a.atttypid
               JOIN pg_catalog.pg_type t ON t.oid = coalesce(nullif(e.typelem, 0), e.oid) AND t.typtype = 'c'
              WHERE a.attrelid = tree.root AND a.attnum > 0 AND NOT a.attisdropped)
  FROM tree JOIN pg_catalog.pg_class c ON c.oid = tree.oid
 GROUP BY tree.root
"""


@dataclass(frozen=True, slots=True)
class TableStorage:
    """The physical storage of a table, as far as the catalog shows it."""

    files: str
    """A digest of its files, its partitions' included."""
    columns: str
    """A digest of when each column was last changed."""
    plain: frozenset[int]
    """The numbers of the columns that are not generated."""
    generated: frozenset[int]
    attributes: frozenset[str]
    """The attributes of its columns' composite types, as type and number."""
    composites: frozenset[str]

    def to_text(self) -> str:
        lists = (sorted(self.plain), sorted(self.generated), sorted(self.attributes), sorted(self.composites))
        return json.dumps([self.files, self.columns, *lists], separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> TableStorage:
        files, columns, *lists = json.loads(text)
        return cls(files, columns, *map(frozenset, lists))


def storage_of(connection: PlainConnection, tables: Iterable[int]) -> dict[int, TableStorage]:
    """Return the present storage of these tables."""
    rows = connection.execute(_STORED, (list(tables),)).fetchall()
    return {
        oid: TableStorage(
            _digest(files),
            _digest(columns or ""),
            frozenset(plain),
            frozenset(generated),
            frozenset(attributes),
            frozenset(map(str, composites)),
        )
        for oid, files, columns, plain, generated, attributes, composites in rows
    }


def storage_of_tables(
    conninfo: str, publication: str
) -> tuple[tuple[Relation, ...], dict[int, TableStorage], tuple[TableFlaw, ...]]:
    """Return the publication's tables, their storage and their flaws.

    Unreachable: PostgreSQL failed to answer a query.
    """
    try:
        with connect(conninfo) as connection:
            relations = published_in(connection, publication)
            flaws = find_flaws(connection, publication)
            return relations, storage_of(connection, [relation.oid for relation in relations]), flaws
    except psycopg.Error as error:
        raise Unreachable(f"PostgreSQL at {address(conninfo)}: {error_text(error)}") from error


def unsent_change(before: TableStorage, now: TableStorage) -> str | None:
    """Describe a change of rows that PostgreSQL does not send; None if none is known."""
    if before.generated & now.plain:
        return "a generated column became a plain one, but earlier rows were sent without it"
    lost = {a for a in before.attributes - now.attributes if a.partition(".")[0] in now.composites}
    if lost:
        return "a composite type lost an attribute, but earlier rows were sent with it"
    if before.files != now.files and before.columns != now.columns:
        return "ALTER TABLE rewrote the table, and PostgreSQL does not send the rewritten rows"
    return None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
