"""Describes tables completely, by one statement, as the catalog has them in one snapshot.

The statement takes no lock on a table, and calls no function that takes one, because a prepared
transaction may hold the lock.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import psycopg

from twofold.descriptions.description import Description
from twofold.errors import TwofoldError, Unreachable
from twofold.source.connection import PlainConnection, address, connect
from twofold.source.diagnosis import error_text
from twofold.source.flaws import TableFlaw, find_flaws, refusal_of
from twofold.source.messages import Relation
from twofold.source.published_tables import published_in
from twofold.source.wal_end import insert_end
from twofold_common.positions import NO_LSN, Lsn

_log = logging.getLogger(__name__)

_CLOSE_WAIT_S = 1.0

# {tables} is an array of oids. Not pg_partition_tree() and not pg_relation_size(): they lock the
# tables. Not md5(): a server in FIPS mode has none. A row filter's tree has the numbers of columns
# in place of names, so a renamed column leaves it as it is. From 19 on, a row of pg_publication_rel
# may except a table and all its partitions.
DESCRIBE = """
WITH RECURSIVE wanted AS (
    SELECT DISTINCT unnest({tables}::oid[]) AS oid
), tree AS (
    SELECT oid AS root, oid, NULL::xid AS linked FROM wanted
    UNION ALL
    SELECT tree.root, i.inhrelid, i.xmin FROM tree JOIN pg_catalog.pg_inherits i ON i.inhparent = tree.oid
      JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid AND c.relispartition
), above AS (
    SELECT oid AS leaf, oid, 0 AS height, NULL::xid AS linked FROM wanted
    UNION ALL
    SELECT above.leaf, i.inhparent, above.height + 1, i.xmin FROM above
      JOIN pg_catalog.pg_class c ON c.oid = above.oid AND c.relispartition
      JOIN pg_catalog.pg_inherits i ON i.inhrelid = above.oid
), parts AS (
    SELECT wanted.oid AS root, a.atttypid AS type FROM wanted
      JOIN pg_catalog.pg_attribute a ON a.attrelid = wanted.oid AND a.attnum > 0 AND a.atttypid >= 16384
    UNION
    SELECT parts.root, part.type FROM parts
      JOIN pg_catalog.pg_type t ON t.oid = parts.type
      CROSS JOIN LATERAL (
           SELECT t.typelem AS type
           UNION ALL SELECT t.typbasetype
           UNION ALL SELECT r.rngsubtype FROM pg_catalog.pg_range r WHERE r.rngtypid = t.oid
           UNION ALL SELECT r.rngtypid FROM pg_catalog.pg_range r WHERE r.rngmultitypid = t.oid
           UNION ALL SELECT m.atttypid FROM pg_catalog.pg_attribute m
                      WHERE t.typtype = 'c' AND m.attrelid = t.typrelid AND m.attnum > 0) part
     WHERE part.type >= 16384
), below AS (
    SELECT tree.root,
           coalesce(sum(greatest(b.reltuples::bigint, pg_catalog.pg_stat_get_live_tuples(b.oid))) FILTER (WHERE b.relkind = 'r'), 0)::bigint AS rows,
           left(encode(sha256(string_agg(b.oid || ':' || b.relfilenode, ',' ORDER BY b.oid)::bytea), 'hex'), 16) AS files,
           jsonb_agg(jsonb_build_array(b.oid::bigint, u.xmin = tree.linked, tree.linked::text::bigint)) FILTER (WHERE b.oid <> tree.root) AS partitions
      FROM tree JOIN pg_catalog.pg_class b ON b.oid = tree.oid LEFT JOIN pg_catalog.pg_type u ON u.oid = b.reltype
     GROUP BY tree.root
), missing AS (
    SELECT tree.root, m.attname, max(m.attmissingval::text) AS value FROM tree
      JOIN pg_catalog.pg_class r ON r.oid = tree.root AND r.relkind = 'p'
      JOIN pg_catalog.pg_attribute m ON m.attrelid = tree.oid AND m.attnum > 0 AND m.atthasmissing AND NOT m.attisdropped
     GROUP BY tree.root, m.attname
), parents AS (
    SELECT leaf, jsonb_agg(oid::bigint ORDER BY height) AS oids,
           jsonb_agg(linked::text::bigint ORDER BY height) AS links FROM above WHERE height > 0 GROUP BY leaf
), composites AS (
    SELECT parts.root, jsonb_agg(jsonb_build_array(t.oid::bigint, m.attnum, m.attname, m.xmin::text::bigint)) AS attributes
      FROM parts JOIN pg_catalog.pg_type t ON t.oid = parts.type AND t.typtype = 'c'
      JOIN pg_catalog.pg_attribute m ON m.attrelid = t.typrelid AND m.attnum > 0 AND NOT m.attisdropped
     GROUP BY parts.root
), enums AS (
    SELECT parts.root, jsonb_agg(jsonb_build_array(e.oid::bigint, e.enumlabel, e.xmin::text::bigint)) AS labels
      FROM parts JOIN pg_catalog.pg_enum e ON e.enumtypid = parts.type GROUP BY parts.root
), excepted AS (
    SELECT above.leaf, r.prpubid AS publication FROM above JOIN pg_catalog.pg_publication_rel r ON r.prrelid = above.oid
     WHERE (to_jsonb(r) ->> 'prexcept')::boolean
), members AS (
    SELECT leaf, publication, jsonb_agg(DISTINCT oid::bigint) AS oids, bool_or(by_parent) AS by_parent FROM (
        SELECT above.leaf, r.prpubid AS publication, r.oid, above.height > 0 AS by_parent
          FROM above JOIN pg_catalog.pg_publication_rel r ON r.prrelid = above.oid
        UNION ALL
        SELECT above.leaf, s.pnpubid, s.oid, above.height > 0
          FROM above JOIN pg_catalog.pg_class b ON b.oid = above.oid
          JOIN pg_catalog.pg_publication_namespace s ON s.pnnspid = b.relnamespace
        UNION ALL
        SELECT above.leaf, p.oid, p.oid, above.height > 0
          FROM above CROSS JOIN pg_catalog.pg_publication p WHERE p.puballtables) member
     WHERE (leaf, publication) NOT IN (SELECT leaf, publication FROM excepted)
     GROUP BY leaf, publication
), published AS (
    SELECT members.leaf, jsonb_agg(jsonb_build_object(
               'name', p.pubname, 'oid', p.oid::bigint, 'row', p.xmin::text::bigint, 'owner', p.pubowner::bigint,
               'operations', concat(CASE WHEN p.pubinsert THEN 'i' END, CASE WHEN p.pubupdate THEN 'u' END,
                                    CASE WHEN p.pubdelete THEN 'd' END, CASE WHEN p.pubtruncate THEN 't' END),
               'via_root', p.pubviaroot, 'generated', coalesce(to_jsonb(p) ->> 'pubgencols', 'n'), 'members', members.oids,
               'by_parent', members.by_parent,
               'filter', CASE WHEN s.oid IS NULL THEN left(encode(sha256(convert_to(r.prqual::text, 'UTF8')), 'hex'), 16) END,
               'columns', CASE WHEN s.oid IS NULL THEN to_jsonb(r.prattrs::smallint[]) END) ORDER BY p.oid) AS publications
      FROM members
      JOIN pg_catalog.pg_publication p ON p.oid = members.publication
      JOIN pg_catalog.pg_class b ON b.oid = members.leaf
      LEFT JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = b.oid
      LEFT JOIN pg_catalog.pg_publication_namespace s ON s.pnpubid = p.oid AND s.pnnspid = b.relnamespace
     GROUP BY members.leaf
)
SELECT c.oid::bigint, below.rows,
       jsonb_build_object(
       'major', current_setting('server_version_num')::int / 10000,
       'oid', c.oid::bigint, 'schema', n.nspname, 'name', c.relname, 'kind', c.relkind,
       'persistence', c.relpersistence, 'owner', c.relowner::bigint, 'replica_identity', c.relreplident,
       'row', c.xmin::text::bigint, 'type_row', coalesce(y.xmin::text::bigint, 0), 'toast', c.reltoastrelid::bigint,
       'altered', (SELECT left(encode(sha256(string_agg(a.attnum || ':' || a.xmin, ',' ORDER BY a.attnum)::bytea), 'hex'), 16)
                     FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0),
       'columns', (SELECT coalesce(jsonb_agg(jsonb_build_object(
                       'number', a.attnum, 'name', a.attname, 'type', a.atttypid::bigint, 'modifier', a.atttypmod,
                       'row', a.xmin::text::bigint, 'collation', a.attcollation::bigint, 'generated', a.attgenerated, 'identity', a.attidentity,
                       'default', CASE WHEN a.atthasmissing THEN a.attmissingval::text ELSE missing.value END) ORDER BY a.attnum), '[]')
                     FROM pg_catalog.pg_attribute a LEFT JOIN missing ON missing.root = c.oid AND missing.attname = a.attname
                    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
       'keys', (SELECT coalesce(jsonb_agg(jsonb_build_object(
                    'index', i.indexrelid::bigint,
                    'constraint', coalesce((SELECT min(o.oid::bigint) FROM pg_catalog.pg_constraint o
                                             WHERE o.conrelid = i.indrelid AND o.conindid = i.indexrelid AND o.contype IN ('p', 'u')), 0),
                    'usable', i.indimmediate AND i.indisvalid
                              AND NOT EXISTS (SELECT FROM pg_catalog.pg_attribute a
                                               WHERE a.attrelid = i.indrelid AND a.attnum = ANY ((i.indkey::smallint[])[0:i.indnkeyatts - 1])
                                                 AND (NOT a.attnotnull
                                                      OR EXISTS (SELECT FROM pg_catalog.pg_constraint t
                                                                  WHERE t.conrelid = i.indrelid AND t.contype = 'n' AND NOT t.convalidated
                                                                    AND t.conkey = ARRAY[a.attnum]))),
                    'primary', i.indisprimary, 'replica_identity', i.indisreplident,
                    'columns', to_jsonb((i.indkey::smallint[])[0:i.indnkeyatts - 1]),
                    'operators', to_jsonb(i.indclass::oid[]::bigint[]), 'collations', to_jsonb(i.indcollation::oid[]::bigint[]))
                    ORDER BY i.indisprimary DESC, i.indnkeyatts, x.relname), '[]')
                  FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class x ON x.oid = i.indexrelid
                 WHERE i.indrelid = c.oid AND i.indisunique AND i.indexprs IS NULL AND i.indpred IS NULL),
       'attributes', coalesce(composites.attributes, '[]'), 'labels', coalesce(enums.labels, '[]'),
       'files', below.files, 'partitions', coalesce(below.partitions, '[]'), 'parents', coalesce(parents.oids, '[]'), 'links', coalesce(parents.links, '[]'),
       'publications', coalesce(published.publications, '[]'))
  FROM wanted
  JOIN pg_catalog.pg_class c ON c.oid = wanted.oid
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  JOIN below ON below.root = c.oid
  LEFT JOIN parents ON parents.leaf = c.oid
  LEFT JOIN composites ON composites.root = c.oid
  LEFT JOIN enums ON enums.root = c.oid
  LEFT JOIN published ON published.leaf = c.oid
  LEFT JOIN pg_catalog.pg_type y ON y.oid = c.reltype
"""


@dataclass(frozen=True, slots=True)
class DescribedTables:
    """All tables of a publication at about one moment."""

    relations: tuple[Relation, ...]
    described: Mapping[int, Description]
    """The descriptions of the tables that still exist, by oid."""
    rows: Mapping[int, int]
    """The approximate number of rows of each table, by oid."""
    flaws: tuple[TableFlaw, ...] = ()
    end_lsn: Lsn = NO_LSN
    """A position behind every command whose effect was found."""


def describe_published(conninfo: str, publication: str) -> DescribedTables:
    """Return the publication's tables, their descriptions and their flaws.

    Unreachable: PostgreSQL failed to answer a query.
    """
    try:
        with connect(conninfo) as connection:
            # The planner takes the statement for a large one: compiling it takes longer than it.
            connection.execute("SET jit = off")
            relations = published_in(connection, publication)
            flaws = find_flaws(connection, publication)
            found = describe_tables(connection, publication, [relation.oid for relation in relations])
            end_lsn = insert_end(connection)
    except psycopg.Error as error:
        raise Unreachable(f"PostgreSQL at {address(conninfo)}: {error_text(error)}") from error
    rows, described = {}, {}
    for oid, (count, description) in found.items():
        rows[oid], described[oid] = count, description
    return DescribedTables(relations, described, rows, flaws, end_lsn)


def describe_tables(
    connection: PlainConnection, publication: str, tables: Iterable[int]
) -> dict[int, tuple[int, Description]]:
    """Return each table's number of rows, about, and its description as the publication has it."""
    found = connection.execute(DESCRIBE.format(tables="%s"), (list(tables),)).fetchall()
    return {oid: (rows, Description.from_json(described, publication)) for oid, rows, described in found}


class JoinedTables:
    """The tables that join the publication during one run: a thread of its own looks for them, and
    describes all tables.

    So a table without changes gets its topic and its rows too, and changes that PostgreSQL does not
    send are noticed by the description. The stream names a table only at its first row, and a
    rewrite never. A result is only a hint. The thread that runs the turn decides, and the next look
    finds what this one missed.
    """

    def __init__(
        self, conninfo: str, publication: str, every_s: float, *, found: DescribedTables | None = None
    ) -> None:
        """An interval of 0 s means never; `found`: what was found just now."""
        self._conninfo = conninfo
        self._publication = publication
        self._every_s = every_s
        self._found: queue.SimpleQueue[DescribedTables] = queue.SimpleQueue()
        if found is not None:
            self._found.put(found)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._find, name="newcomers", daemon=True)
        if every_s:
            self._thread.start()

    def take_result(self) -> DescribedTables | None:
        """Return the result since the last call, if there is one. Never blocks.

        Refused: a table cannot be followed.
        """
        found = None
        while not self._found.empty():
            found = self._found.get()
        if found is not None and found.flaws:
            raise refusal_of(found.flaws)
        return found

    def close(self) -> None:
        self._closing.set()
        if self._every_s:
            self._thread.join(_CLOSE_WAIT_S)

    def _find(self) -> None:
        while not self._closing.wait(self._every_s):
            try:
                self._found.put(describe_published(self._conninfo, self._publication))
            except TwofoldError as error:
                # The stream meets the server's errors too, and decides; here they only mean another
                # look.
                _log.debug("tables that have joined the publication: %s", error)
