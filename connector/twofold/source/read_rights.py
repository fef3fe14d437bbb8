"""Names what a role lacks to read a published table, as statements for the table's owner or an
administrator.

Reads only the catalog.
"""

from __future__ import annotations

import psycopg

from twofold.errors import SetupError
from twofold.source.connection import PlainConnection, connect
from twofold.source.diagnosis import error_text
from twofold_common.table_names import sql_identifier

_RIGHTS = """
SELECT pg_catalog.has_schema_privilege(n.oid, 'USAGE'), pg_catalog.has_table_privilege(c.oid, 'SELECT'),
       pg_catalog.row_security_active(c.oid)
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = %s AND c.relname = %s
"""


def missing_rights(connection: PlainConnection, schema: str, table: str) -> tuple[str, ...]:
    """Return the statements that let the session's role read the table; empty if it may."""
    row = connection.execute(_RIGHTS, (schema, table)).fetchone()
    if row is None:
        return ()
    role = sql_identifier(connection.info.user)
    uses_schema, selects, is_filtered = row
    return (
        *(() if uses_schema else (f"GRANT USAGE ON SCHEMA {sql_identifier(schema)} TO {role};",)),
        *(() if selects else (f"GRANT SELECT ON {sql_identifier(schema, table)} TO {role};",)),
        # With row_security off a policy is an error, whatever it permits.
        *((f"ALTER ROLE {role} BYPASSRLS;",) if is_filtered else ()),
    )


def unreadable(conninfo: str, schema: str, table: str, error: psycopg.Error) -> SetupError:
    """Explain why the table cannot be read."""
    with connect(conninfo) as connection:
        statements = missing_rights(connection, schema, table)
        role = connection.info.user
    remedy = " ".join(statements) or f"grant role {role} what PostgreSQL says"
    return SetupError(f"the backfill cannot read table {schema}.{table}: {error_text(error)}; remedy: {remedy}")
