"""Checks whether `init` can create the publication: the named tables, and the role's rights; and
whether one that exists has the named tables.

Reads only.
"""

from __future__ import annotations

from collections.abc import Iterator

from twofold.source.connection import PlainConnection, connect
from twofold.source.provisioning import PublicationContent
from twofold.source.published_tables import publication_exists
from twofold.source.readiness import ReadinessFinding
from twofold_common.table_names import sql_identifier

_TABLE = """
SELECT c.relkind::text, c.relpersistence::text, pg_catalog.pg_has_role(c.relowner, 'USAGE'), pg_catalog.pg_get_userbyid(c.relowner)::text
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = %s AND c.relname = %s
"""
_SIMILAR = """
SELECT n.nspname || '.' || c.relname
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p') AND lower(c.relname) = lower(%s) AND n.nspname NOT IN ('pg_catalog', 'information_schema')
 ORDER BY 1 LIMIT 3
"""
_LEFT_OUT = """
SELECT n.nspname::text, c.relname::text
  FROM pg_catalog.pg_publication p
 CROSS JOIN pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 CROSS JOIN LATERAL (SELECT array_agg(above.relid::oid) || c.oid AS oids FROM pg_catalog.pg_partition_ancestors(c.oid) above) tree
 WHERE p.pubname = %s AND NOT p.puballtables AND c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
   AND (%s AND NOT c.relispartition AND n.nspname <> ALL ('{pg_catalog,information_schema,twofold}') OR n.nspname = ANY (%s)
        OR (n.nspname, c.relname) IN (SELECT * FROM unnest(%s::name[], %s::name[])))
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_publication_rel r WHERE r.prpubid = p.oid AND r.prrelid = ANY (tree.oids))
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_publication_namespace s JOIN pg_catalog.pg_class t ON t.relnamespace = s.pnnspid
                    WHERE s.pnpubid = p.oid AND t.oid = ANY (tree.oids))
 ORDER BY 1, 2
"""
_NAMED = 5
"""So many tables are named in one finding."""
_KINDS = {"v": "a view", "m": "a materialized view", "f": "a foreign table", "S": "a sequence"}


def examine(conninfo: str, name: str, published: PublicationContent) -> tuple[ReadinessFinding, ...]:
    """Return what CREATE PUBLICATION would refuse, each finding with its remedy.

    The result is empty if there is a publication of this name. A finding is only advice where a
    provider may have its own rules.
    """
    with connect(conninfo) as connection:
        if publication_exists(connection, name):
            return ()
        return (*_rights(connection, published), *_schemas(connection, published), *_tables(connection, published))


def find_left_out(connection: PlainConnection, name: str, published: PublicationContent) -> ReadinessFinding | None:
    """Find what source.tables names and the publication, which exists, does not have: `init` does
    not change it.
    """
    named = [schema for schema, _ in published.tables], [table for _, table in published.tables]
    rows = connection.execute(_LEFT_OUT, (name, published.all_tables, [*published.schemas], *named)).fetchall()
    if not rows:
        return None
    more = f" and {len(rows) - _NAMED} more" if len(rows) > _NAMED else ""
    return ReadinessFinding(
        f"publication {name} exists, and twofold init leaves it as it is: it lacks {', '.join(map('.'.join, rows[:_NAMED]))}{more}, which source.tables names",
        f"ALTER PUBLICATION {sql_identifier(name)} ADD TABLE {', '.join(sql_identifier(*row) for row in rows)}; or correct source.tables",
        must=False,
    )


def _rights(connection: PlainConnection, published: PublicationContent) -> Iterator[ReadinessFinding]:
    row = connection.execute(
        "SELECT pg_catalog.has_database_privilege(current_database(), 'CREATE'), rolsuper"
        "  FROM pg_catalog.pg_roles WHERE rolname = current_user"
    ).fetchone()
    assert row is not None
    may_create, is_superuser = row
    if not may_create:
        yield ReadinessFinding(
            f"role {connection.info.user} may not create a publication in database {connection.info.dbname}",
            f"GRANT CREATE ON DATABASE {sql_identifier(connection.info.dbname)} TO {_user(connection)};",
        )
    if not is_superuser and (published.all_tables or published.schemas):
        yield ReadinessFinding(
            f"role {connection.info.user} is not a superuser, and only a superuser can publish whole schemas or all tables",
            "name the tables one by one in source.tables, or let a superuser run CREATE PUBLICATION and remove source.tables",
            must=False,  # some providers have roles that may
        )


def _schemas(connection: PlainConnection, published: PublicationContent) -> Iterator[ReadinessFinding]:
    for schema in published.schemas:
        if connection.execute("SELECT FROM pg_catalog.pg_namespace WHERE nspname = %s", (schema,)).fetchone() is None:
            yield ReadinessFinding(
                f"source.tables names {schema}.*, but database {connection.info.dbname} has no schema {schema}",
                f"correct source.tables, or CREATE SCHEMA {sql_identifier(schema)};",
            )


def _tables(connection: PlainConnection, published: PublicationContent) -> Iterator[ReadinessFinding]:
    for schema, table in published.tables:
        named, full = f"{schema}.{table}", sql_identifier(schema, table)
        row = connection.execute(_TABLE, (schema, table)).fetchone()
        if row is None:
            yield _missing(connection, schema, table)
            continue
        kind, persistence, may_own, owner = row
        if kind not in {"r", "p"}:
            yield ReadinessFinding(
                f"source.tables names {named}, which is {_KINDS.get(kind, 'not a table')}: it has no changes of its own",
                "instead, name the tables that its rows come from",
            )
        elif persistence != "p":
            durability = "an unlogged" if persistence == "u" else "a temporary"
            yield ReadinessFinding(
                f"source.tables names {named}, which is {durability} table: its changes are not in the WAL",
                f"ALTER TABLE {full} SET LOGGED;" if persistence == "u" else "remove it from source.tables",
            )
        elif not may_own:
            user = _user(connection)
            yield ReadinessFinding(
                f"table {named} belongs to {owner}, and role {connection.info.user} may publish only its own tables",
                f"GRANT {sql_identifier(owner)} TO {user}; or ALTER TABLE {full} OWNER TO {user};",
            )


def _missing(connection: PlainConnection, schema: str, table: str) -> ReadinessFinding:
    similar = [name for (name,) in connection.execute(_SIMILAR, (table,)).fetchall()]
    hint = f"; similar names: {', '.join(similar)}" if similar else ""
    return ReadinessFinding(
        f"source.tables names {schema}.{table}, but database {connection.info.dbname} has no such table{hint}",
        "correct source.tables, or create the table first",
    )


def _user(connection: PlainConnection) -> str:
    return sql_identifier(connection.info.user)
