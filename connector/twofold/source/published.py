"""The tables of a publication as Relation messages, as the stream would describe them now: so that topics and schemas are there before the first row is."""

from __future__ import annotations

from twofold.errors import MissingGround
from twofold.source.connection import connect
from twofold.source.messages import Relation, RelationColumn
from twofold_avro.shapes import ReplicaIdentity

_IDENTITIES: dict[str, ReplicaIdentity] = {"d": "default", "i": "index", "f": "full", "n": "nothing"}

# Before 18 the stream leaves generated columns out, whatever the view says.
_TABLES = """
SELECT c.oid::bigint, p.schemaname::text, p.tablename::text, c.relreplident::text,
       ARRAY(SELECT ROW(a.attname, a.atttypid::bigint, a.atttypmod,
                        c.relreplident = 'f' OR a.attnum = ANY (coalesce(k.attnums, '{}')))
               FROM pg_catalog.pg_attribute a
              WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attname = ANY (p.attnames)
                AND (a.attgenerated = '' OR pg_catalog.current_setting('server_version_num')::int >= 180000)
              ORDER BY a.attnum) AS columns
  FROM pg_catalog.pg_publication_tables p
  JOIN pg_catalog.pg_namespace n ON n.nspname = p.schemaname
  JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
  LEFT JOIN LATERAL (
       SELECT i.indkey::smallint[] AS attnums
         FROM pg_catalog.pg_index i
        WHERE i.indrelid = c.oid AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident END
       ) k ON true
 WHERE p.pubname = %s
 ORDER BY 2, 3
"""


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
        rows = connection.execute(_TABLES, (publication,)).fetchall()
    return tuple(
        Relation(
            oid,
            schema,
            table,
            _IDENTITIES[identity],
            tuple(
                RelationColumn(name, int(typ), int(typmod), in_identity in {True, "t"})
                for name, typ, typmod, in_identity in columns
            ),
        )
        for oid, schema, table, identity, columns in rows
    )
