"""Describes tables completely, by one statement, as the catalog has them in one snapshot.

The statement takes no lock on a table, and asks no function that takes one: a prepared transaction
may hold it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import psycopg

from twofold.descriptions.description import Description
from twofold.errors import Unreachable
from twofold.source.connection import PlainConnection, address, connect
from twofold.source.diagnosis import error_text
from twofold.source.flaws import TableFlaw, find_flaws
from twofold.source.messages import Relation
from twofold.source.published_tables import published_in

# {tables} is an array of oids. Not pg_partition_tree() and not pg_relation_size(): they lock the
# tables. Not md5(): a server in FIPS mode has none. A row filter's tree has the numbers of columns
# in place of names, so a renamed column leaves it as it is.
DESCRIBE = """
WITH RECURSIVE wanted AS (
    SELECT DISTINCT unnest({tables}::oid[]) AS oid
), tree AS (
    SELECT oid AS root, oid, NULL::xid AS linked FROM wanted
    UNION ALL
    SELECT tree.root, i.inhrelid, i.xmin FROM tree JOIN pg_catalog.pg_inherits i ON i.inhparent = tree.oid
      JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid AND c.relispartition
), above AS (
    SELECT oid AS leaf, oid, 0 AS height FROM wanted
    UNION ALL
    SELECT above.leaf, i.inhparent, above.height + 1 FROM above
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
)
SELECT c.oid::bigint,
       (SELECT coalesce(sum(greatest(b.reltuples::bigint, pg_catalog.pg_stat_get_live_tuples(b.oid))), 0)::bigint
          FROM tree JOIN pg_catalog.pg_class b ON b.oid = tree.oid AND b.relkind = 'r' WHERE tree.root = c.oid),
       jsonb_build_object(
       'major', current_setting('server_version_num')::int / 10000,
       'oid', c.oid::bigint, 'schema', n.nspname, 'name', c.relname, 'kind', c.relkind,
       'persistence', c.relpersistence, 'owner', c.relowner::bigint, 'replica_identity', c.relreplident,
       'row', c.xmin::text::bigint, 'type_row', coalesce(y.xmin::text::bigint, 0), 'toast', c.reltoastrelid::bigint,
       'files', (SELECT left(encode(sha256(string_agg(b.oid || ':' || b.relfilenode, ',' ORDER BY b.oid)::bytea), 'hex'), 16)
                   FROM tree JOIN pg_catalog.pg_class b ON b.oid = tree.oid WHERE tree.root = c.oid),
       'altered', (SELECT left(encode(sha256(string_agg(a.attnum || ':' || a.xmin, ',' ORDER BY a.attnum)::bytea), 'hex'), 16)
                     FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0),
       'columns', (SELECT coalesce(jsonb_agg(jsonb_build_object(
                       'number', a.attnum, 'name', a.attname, 'type', a.atttypid::bigint, 'modifier', a.atttypmod,
                       'collation', a.attcollation::bigint, 'generated', a.attgenerated, 'identity', a.attidentity,
                       'default', CASE WHEN a.atthasmissing THEN a.attmissingval::text END) ORDER BY a.attnum), '[]')
                     FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
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
       'attributes', (SELECT coalesce(jsonb_agg(jsonb_build_array(t.oid::bigint, m.attnum, m.attname)), '[]')
                        FROM parts JOIN pg_catalog.pg_type t ON t.oid = parts.type AND t.typtype = 'c'
                        JOIN pg_catalog.pg_attribute m ON m.attrelid = t.typrelid AND m.attnum > 0 AND NOT m.attisdropped
                       WHERE parts.root = c.oid),
       'labels', (SELECT coalesce(jsonb_agg(jsonb_build_array(e.oid::bigint, e.enumlabel)), '[]')
                    FROM parts JOIN pg_catalog.pg_enum e ON e.enumtypid = parts.type WHERE parts.root = c.oid),
       'partitions', (SELECT coalesce(jsonb_agg(jsonb_build_array(b.oid::bigint, u.xmin = tree.linked)), '[]')
                        FROM tree JOIN pg_catalog.pg_class b ON b.oid = tree.oid JOIN pg_catalog.pg_type u ON u.oid = b.reltype
                       WHERE tree.root = c.oid AND tree.oid <> c.oid),
       'parents', (SELECT coalesce(jsonb_agg(above.oid::bigint ORDER BY above.height), '[]')
                     FROM above WHERE above.leaf = c.oid AND above.height > 0),
       'publications', (SELECT coalesce(jsonb_agg(jsonb_build_object(
                            'name', p.pubname, 'oid', p.oid::bigint, 'row', p.xmin::text::bigint, 'owner', p.pubowner::bigint,
                            'operations', concat(CASE WHEN p.pubinsert THEN 'i' END, CASE WHEN p.pubupdate THEN 'u' END,
                                                 CASE WHEN p.pubdelete THEN 'd' END, CASE WHEN p.pubtruncate THEN 't' END),
                            'via_root', p.pubviaroot, 'generated', coalesce(to_jsonb(p) ->> 'pubgencols', 'n'),
                            'members', to_jsonb(m.oids), 'filter', w.filter, 'columns', w.columns) ORDER BY p.oid), '[]')
                          FROM pg_catalog.pg_publication p
                          CROSS JOIN LATERAL (
                               SELECT array_agg(member.oid) AS oids FROM (
                                   SELECT r.oid::bigint FROM above JOIN pg_catalog.pg_publication_rel r ON r.prrelid = above.oid
                                    WHERE above.leaf = c.oid AND r.prpubid = p.oid
                                   UNION
                                   SELECT s.oid::bigint FROM above JOIN pg_catalog.pg_class b ON b.oid = above.oid
                                     JOIN pg_catalog.pg_publication_namespace s ON s.pnnspid = b.relnamespace
                                    WHERE above.leaf = c.oid AND s.pnpubid = p.oid
                                   UNION
                                   SELECT p.oid::bigint WHERE p.puballtables) member) m
                          LEFT JOIN LATERAL (
                               SELECT left(encode(sha256(convert_to(r.prqual::text, 'UTF8')), 'hex'), 16) AS filter,
                                      to_jsonb(r.prattrs::smallint[]) AS columns
                                 FROM pg_catalog.pg_publication_rel r
                                WHERE r.prpubid = p.oid AND r.prrelid = c.oid
                                  AND NOT EXISTS (SELECT FROM pg_catalog.pg_publication_namespace s
                                                   WHERE s.pnpubid = p.oid AND s.pnnspid = c.relnamespace)) w ON true
                         WHERE m.oids IS NOT NULL))
  FROM wanted
  JOIN pg_catalog.pg_class c ON c.oid = wanted.oid
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN pg_catalog.pg_type y ON y.oid = c.reltype
"""


@dataclass(frozen=True, slots=True)
class DescribedTables:
    """All tables of a publication at about one moment."""

    relations: tuple[Relation, ...]
    described: Mapping[int, Description]
    """The descriptions of those that still exist, by oid."""
    rows: Mapping[int, int]
    """About how many rows each of these has."""
    flaws: tuple[TableFlaw, ...] = ()


def describe_published(conninfo: str, publication: str) -> DescribedTables:
    """Return the publication's tables, their descriptions and their flaws.

    Unreachable: PostgreSQL failed to answer a query.
    """
    try:
        with connect(conninfo) as connection:
            relations = published_in(connection, publication)
            flaws = find_flaws(connection, publication)
            found = describe_tables(connection, publication, [relation.oid for relation in relations])
    except psycopg.Error as error:
        raise Unreachable(f"PostgreSQL at {address(conninfo)}: {error_text(error)}") from error
    rows, described = {}, {}
    for oid, (count, description) in found.items():
        rows[oid], described[oid] = count, description
    return DescribedTables(relations, described, rows, flaws)


def describe_tables(
    connection: PlainConnection, publication: str, tables: Iterable[int]
) -> dict[int, tuple[int, Description]]:
    """Return each table's number of rows, about, and its description as the publication has it."""
    found = connection.execute(DESCRIBE.format(tables="%s"), (list(tables),)).fetchall()
    return {oid: (rows, Description.from_json(described, publication)) for oid, rows, described in found}
