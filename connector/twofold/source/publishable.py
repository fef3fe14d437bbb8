"""Whether the publication that `init` is to make can be made: the tables that are named, and the rights of the role. Reads only."""

from __future__ import annotations

from collections.abc import Iterator

from psycopg import sql

from twofold.source.connection import PlainConnection, connect
from twofold.source.provisioning import PublicationContent, PublishedTable
from twofold.source.readiness import ReadinessFinding

_TABLE = """
SELECT c.relkind::text, c.relpersistence::text, pg_catalog.pg_has_role(c.relowner, 'USAGE'), pg_catalog.pg_get_userbyid(c.relowner)::text
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = %s AND c.relname = %s
"""
_ALIKE = """
SELECT n.nspname || '.' || c.relname
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p') AND lower(c.relname) = lower(%s) AND n.nspname NOT IN ('pg_catalog', 'information_schema')
 ORDER BY 1 LIMIT 3
"""
_KINDS = {"v": "a view", "m": "a materialized view", "f": "a foreign table", "S": "a sequence"}


def examine(conninfo: str, name: str, published: PublicationContent) -> tuple[ReadinessFinding, ...]:
    """What CREATE PUBLICATION would refuse, each with its remedy; nothing if there is one of this name. Advice alone where a provider may have its own rules."""
    with connect(conninfo) as connection:
        if connection.execute("SELECT FROM pg_catalog.pg_publication WHERE pubname = %s", (name,)).fetchone():
            return ()
        return (*_rights(connection, published), *_schemas(connection, published), *_tables(connection, published))


def _rights(connection: PlainConnection, published: PublicationContent) -> Iterator[ReadinessFinding]:
    row = connection.execute(
        "SELECT pg_catalog.has_database_privilege(current_database(), 'CREATE'), rolsuper"
        "  FROM pg_catalog.pg_roles WHERE rolname = current_user"
    ).fetchone()
    assert row is not None
    may_create, is_superuser = row
    if not may_create:
        yield ReadinessFinding(
            f"role {connection.info.user} may not make a publication in database {connection.info.dbname}",
            f"GRANT CREATE ON DATABASE {_quoted(connection, connection.info.dbname)} TO {_user(connection)};",
        )
    if not is_superuser and (published.all_tables or published.schemas):
        yield ReadinessFinding(
            f"role {connection.info.user} is no superuser, and a publication of whole schemas or of all tables needs one",
            "name the tables one by one in source.tables, or let a superuser run CREATE PUBLICATION and leave source.tables out",
            must=False,  # providers have roles that may
        )


def _schemas(connection: PlainConnection, published: PublicationContent) -> Iterator[ReadinessFinding]:
    for schema in published.schemas:
        if connection.execute("SELECT FROM pg_catalog.pg_namespace WHERE nspname = %s", (schema,)).fetchone() is None:
            yield ReadinessFinding(
                f"source.tables names {schema}.*, and database {connection.info.dbname} has no schema {schema}",
                f"correct source.tables, or CREATE SCHEMA {_quoted(connection, schema)};",
            )


def _tables(connection: PlainConnection, published: PublicationContent) -> Iterator[ReadinessFinding]:
    for table in published.tables:
        named, full = f"{table.schema}.{table.table}", _quoted(connection, table.schema, table.table)
        row = connection.execute(_TABLE, (table.schema, table.table)).fetchone()
        if row is None:
            yield _missing(connection, table)
            continue
        kind, persistence, may_own, owner = row
        if kind not in {"r", "p"}:
            yield ReadinessFinding(
                f"source.tables names {named}, which is {_KINDS.get(kind, 'no table')}: it has no changes of its own",
                "name the tables that its rows come from",
            )
        elif persistence != "p":
            what = "an unlogged" if persistence == "u" else "a temporary"
            yield ReadinessFinding(
                f"source.tables names {named}, which is {what} table: its changes are not in the WAL",
                f"ALTER TABLE {full} SET LOGGED;" if persistence == "u" else "take it out of source.tables",
            )
        elif not may_own:
            user = _user(connection)
            yield ReadinessFinding(
                f"table {named} belongs to {owner}, and role {connection.info.user} may publish its own alone",
                f"GRANT {_quoted(connection, owner)} TO {user}; or ALTER TABLE {full} OWNER TO {user};",
            )


def _missing(connection: PlainConnection, table: PublishedTable) -> ReadinessFinding:
    alike = [name for (name,) in connection.execute(_ALIKE, (table.table,)).fetchall()]
    hint = f"; there is {', '.join(alike)}" if alike else ""
    return ReadinessFinding(
        f"source.tables names {table.schema}.{table.table}, and database {connection.info.dbname} has no such table{hint}",
        "correct source.tables, or create the table first",
    )


def _quoted(connection: PlainConnection, *name: str) -> str:
    return sql.Identifier(*name).as_string(connection)


def _user(connection: PlainConnection) -> str:
    return _quoted(connection, connection.info.user)
