"""DDL in the stream: event triggers that write each table's description behind a command into the
command's own transaction, as a logical message.

The statements need a superuser, or what a service has in its place. The schema's comment names the
connectors of the database that use them, so the last reset removes them. The function catches every
error: it never makes a user's command fail.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import sql

from twofold.descriptions.ddl_message import PREFIX
from twofold.errors import SetupError, Unreachable
from twofold.source.connection import PlainConnection, address, connect
from twofold.source.diagnosis import error_text
from twofold.source.shared_objects import SharedObject, changing
from twofold.source.table_descriptions import DESCRIBE

_SHARED = SharedObject("SCHEMA", "twofold", "twofold: event triggers of ")
_TRIGGERS = {"twofold_ddl": "ddl_command_end", "twofold_drop": "sql_drop"}
_SETTINGS = " ".join(
    f"SET {name} = {value}"
    for name, value in {
        "search_path": "pg_catalog, pg_temp",
        "jit": "off",
        # A session plans the statements once, perhaps before a script makes a thousand tables. They
        # look for few rows, so no plan may read a whole catalog where an index finds these.
        "plan_cache_mode": "force_generic_plan",
        "enable_seqscan": "off",
        "enable_hashjoin": "off",
        "enable_mergejoin": "off",
    }.items()
)
_TAGS = ", ".join(
    f"'{tag}'"
    for tag in (
        *("ALTER COLLATION", "ALTER DOMAIN", "ALTER INDEX", "ALTER PUBLICATION", "ALTER SCHEMA", "ALTER TABLE"),
        *("ALTER TYPE", "CREATE INDEX", "CREATE PUBLICATION", "CREATE TABLE", "CREATE TABLE AS", "SELECT INTO"),
    )
)

# OFFSET 0: the planner shall not begin with the whole of pg_class, which has no index for this.
_IN_SCHEMA = "SELECT c.oid, c.relreplident, c.relkind FROM pg_class c WHERE c.relnamespace = {} OFFSET 0"

# Only constants of this program are put into it.
_BODY = f"""
#variable_conflict use_column
DECLARE
    twofold_named oid[];
    twofold_table oid;
    twofold_found record;
BEGIN
    IF TG_EVENT = 'sql_drop' AND TG_TAG = 'ALTER TABLE' THEN
        RETURN;  -- its end tells of the same tables
    ELSIF TG_EVENT = 'sql_drop' THEN
        WITH d AS MATERIALIZED (SELECT * FROM pg_event_trigger_dropped_objects())
        SELECT array_agg(found.oid) INTO twofold_named FROM (
            SELECT d.objid AS oid FROM d WHERE d.classid = 'pg_class'::regclass AND d.objsubid > 0
            UNION
            SELECT b.oid FROM (SELECT DISTINCT schema_name FROM d WHERE object_type = 'index' AND NOT is_temporary) made
              JOIN pg_namespace n ON n.nspname = made.schema_name
              CROSS JOIN LATERAL ({_IN_SCHEMA.format("n.oid")}) b WHERE b.relreplident = 'f' AND b.relkind IN ('r', 'p')
            UNION
            SELECT b.oid FROM d JOIN pg_namespace n ON n.nspname = d.address_names[1]
              JOIN pg_class b ON b.relnamespace = n.oid AND b.relname = d.address_names[2]
             WHERE d.object_type = 'publication relation'
            UNION
            SELECT b.oid FROM d JOIN pg_namespace n ON n.nspname = d.address_names[1]
              CROSS JOIN LATERAL ({_IN_SCHEMA.format("n.oid")}) b
             WHERE d.object_type = 'publication namespace') found;
    ELSE
        WITH d AS MATERIALIZED (SELECT classid, objid FROM pg_event_trigger_ddl_commands())
        SELECT array_agg(found.oid) INTO twofold_named FROM (
            SELECT d.objid AS oid FROM d WHERE d.classid = 'pg_class'::regclass
            UNION
            SELECT i.indrelid FROM d JOIN pg_index i ON d.classid = 'pg_class'::regclass AND i.indexrelid = d.objid
            UNION
            SELECT o.conrelid FROM d JOIN pg_constraint o ON d.classid = 'pg_constraint'::regclass AND o.oid = d.objid
            UNION
            SELECT b.oid FROM d CROSS JOIN LATERAL ({_IN_SCHEMA.format("d.objid")}) b
             WHERE d.classid = 'pg_namespace'::regclass
            UNION
            SELECT r.prrelid FROM d
              JOIN pg_publication_rel r ON d.classid = 'pg_publication_rel'::regclass AND r.oid = d.objid
            UNION
            SELECT r.prrelid FROM d
              JOIN pg_publication_rel r ON d.classid = 'pg_publication'::regclass AND r.prpubid = d.objid
            UNION
            SELECT b.oid FROM d
              JOIN pg_publication_namespace s ON d.classid = 'pg_publication_namespace'::regclass AND s.oid = d.objid
              CROSS JOIN LATERAL ({_IN_SCHEMA.format("s.pnnspid")}) b
            UNION
            SELECT b.oid FROM d
              JOIN pg_publication_namespace s ON d.classid = 'pg_publication'::regclass AND s.pnpubid = d.objid
              CROSS JOIN LATERAL ({_IN_SCHEMA.format("s.pnnspid")}) b
            UNION
            SELECT b.oid FROM d
              JOIN pg_publication p ON d.classid = 'pg_publication'::regclass AND p.oid = d.objid AND p.puballtables
              CROSS JOIN LATERAL (SELECT c.oid FROM pg_class c WHERE c.oid >= 16384 OFFSET 0) b
            UNION
            SELECT a.attrelid FROM pg_attribute a
             WHERE TG_TAG IN ('ALTER TYPE', 'ALTER DOMAIN', 'ALTER COLLATION') AND a.attnum > 0
               AND (a.atttypid >= 16384 OR a.attcollation >= 16384)) found;
    END IF;
    IF twofold_named IS NULL THEN
        RETURN;
    END IF;
    WITH RECURSIVE above AS (
        SELECT unnest(twofold_named) AS oid
        UNION
        SELECT i.inhparent FROM above JOIN pg_inherits i ON i.inhrelid = above.oid
    ), below AS (
        SELECT unnest(twofold_named) AS oid
        UNION
        SELECT i.inhrelid FROM below JOIN pg_inherits i ON i.inhparent = below.oid
    ), concerned AS (
        SELECT b.oid, b.relnamespace FROM (SELECT oid FROM above UNION SELECT oid FROM below) every
          JOIN pg_class b ON b.oid = every.oid AND b.relkind IN ('r', 'p') AND b.relpersistence <> 't'
    )
    SELECT array_agg(concerned.oid) INTO twofold_named FROM concerned
     WHERE EXISTS (SELECT FROM pg_publication p WHERE p.puballtables)
        OR EXISTS (SELECT FROM concerned other JOIN pg_publication_rel r ON r.prrelid = other.oid)
        OR EXISTS (SELECT FROM concerned other JOIN pg_publication_namespace s ON s.pnnspid = other.relnamespace);
    FOREACH twofold_table IN ARRAY coalesce(twofold_named, ARRAY[]::oid[]) LOOP
        FOR twofold_found IN
            SELECT told.described FROM ({DESCRIBE.format(tables="ARRAY[twofold_table]")}) told(oid, rows, described)
        LOOP
            PERFORM pg_logical_emit_message(true, '{PREFIX}', convert_to(
                jsonb_build_object('command', TG_TAG, 'table', twofold_found.described)::text, 'UTF8'));
        END LOOP;
    END LOOP;
    -- Decoding orders a message by its end, which is where the next record begins: without one in
    -- between, a row of the transaction around this block could come before what is told of it.
    PERFORM pg_logical_emit_message(true, '{PREFIX}', ''::text);
EXCEPTION WHEN OTHERS THEN
    BEGIN
        PERFORM pg_logical_emit_message(true, '{PREFIX}', convert_to(
            jsonb_build_object('command', TG_TAG, 'failed', SQLSTATE)::text, 'UTF8'));
    EXCEPTION WHEN OTHERS THEN
        NULL;
    END;
END
"""  # noqa: S608

INSTALL = (
    "CREATE SCHEMA IF NOT EXISTS twofold",
    f"CREATE OR REPLACE FUNCTION twofold.tell_ddl() RETURNS event_trigger LANGUAGE plpgsql {_SETTINGS} AS $twofold${_BODY}$twofold$",
    *(f"DROP EVENT TRIGGER IF EXISTS {name}" for name in _TRIGGERS),
    f"CREATE EVENT TRIGGER twofold_ddl ON ddl_command_end WHEN TAG IN ({_TAGS}) EXECUTE FUNCTION twofold.tell_ddl()",
    "CREATE EVENT TRIGGER twofold_drop ON sql_drop EXECUTE FUNCTION twofold.tell_ddl()",
    *(f"ALTER EVENT TRIGGER {name} ENABLE ALWAYS" for name in _TRIGGERS),
)
REMOVE = (
    *(f"DROP EVENT TRIGGER IF EXISTS {name}" for name in _TRIGGERS),
    "DROP FUNCTION IF EXISTS twofold.tell_ddl()",
    "DROP SCHEMA IF EXISTS twofold",
)
_NAMES = {event: name for name, event in _TRIGGERS.items()}
_ENABLED = {"D": "disabled", "O": "ENABLE only", "R": "ENABLE REPLICA"}
_STATE = """
SELECT e.evtevent::text, e.evtname::text, e.evtenabled::text, f.prosrc = %s
  FROM pg_catalog.pg_event_trigger e
  JOIN pg_catalog.pg_proc f ON f.oid = e.evtfoid AND f.proname = 'tell_ddl'
  JOIN pg_catalog.pg_namespace n ON n.oid = f.pronamespace AND n.nspname = 'twofold'
 ORDER BY e.evtevent
"""
_IS_THERE = "SELECT FROM pg_catalog.pg_namespace WHERE nspname = 'twofold'"


def install_script(*connectors: str) -> str:
    """Return what `install` runs for these connectors, by their slots, as a person runs it."""
    statements = *INSTALL, _SHARED.comment(connectors).as_string(None)
    return "".join(f"{statement};\n" for statement in statements)


def install(conninfo: str, connector: str) -> bool:
    """Make the triggers, or note that this connector uses them too. Return False if nothing had to
    be changed.

    SetupError: the role may not; the error has the statements.
    """
    with changing(conninfo) as connection:
        users = _users(connection)
        if connector in users and not flaws_in(connection):
            return False
        try:
            with connection.transaction():
                _drop_renamed(connection)
                for statement in INSTALL:
                    connection.execute(statement)
                connection.execute(_SHARED.comment({*users, connector}))
        except psycopg.errors.InsufficientPrivilege as error:
            raise SetupError(
                f"this role may not make event triggers: {error.diag.message_primary}; remedy: set source.ddl_messages = false, or let a superuser run this in the database, and then twofold init again:\n"
                + install_script(*users, connector)
            ) from error
        return True


def remove(conninfo: str, connector: str) -> bool:
    """Remove the triggers if no other connector uses them. Return whether that was done."""
    with connect(conninfo) as connection:
        if _SHARED.users(connection) is None:
            return False
    with changing(conninfo) as connection:
        users = _users(connection)
        others = users - {connector}
        if others or not users:
            if others != users:
                connection.execute(_SHARED.comment(others))
            return False
        try:
            _drop_renamed(connection)
            for statement in REMOVE:
                connection.execute(statement)
        except psycopg.errors.InsufficientPrivilege as error:
            raise SetupError(
                f"this role may not remove event triggers: {error.diag.message_primary}; remedy: let a superuser run this in the database, and then twofold reset again:\n"
                + "".join(f"{statement};\n" for statement in REMOVE)
            ) from error
        return True


def flaws(conninfo: str) -> tuple[str, ...]:
    """Return why the triggers do not write a message for each command, if they do not."""
    try:
        with connect(conninfo) as connection:
            return flaws_in(connection)
    except psycopg.Error as error:
        raise Unreachable(f"PostgreSQL at {address(conninfo)}: {error_text(error)}") from error


def flaws_in(connection: PlainConnection) -> tuple[str, ...]:
    """Return the same as `flaws`, over an open connection."""
    found: dict[str, tuple[str, str, bool]] = {
        event: (name, enabled, is_ours) for event, name, enabled, is_ours in connection.execute(_STATE, (_BODY,))
    }
    if not found:
        return ("there are no event triggers",)
    said = [f"there is no event trigger for {event}" for event in _TRIGGERS.values() if event not in found]
    for event, (name, enabled, is_ours) in found.items():
        if name not in _TRIGGERS:
            said.append(f"event trigger {_NAMES[event]} was renamed to {name}")
        if enabled != "A":
            said.append(f"event trigger {name} is {_ENABLED.get(enabled, enabled)}, not ENABLE ALWAYS")
        if not is_ours:
            said.append(f"the function of event trigger {name} is another version's")
    row: Any = connection.execute("SELECT pg_catalog.current_setting('event_triggers', true)").fetchone()
    if row[0] == "off":
        said.append("event_triggers is off for this server, database or role")
    return tuple(dict.fromkeys(said))


def _drop_renamed(connection: PlainConnection) -> None:
    """Drop our triggers that somebody gave another name."""
    for _, name, *_ in connection.execute(_STATE, (_BODY,)).fetchall():
        if name not in _TRIGGERS:
            connection.execute(sql.SQL("DROP EVENT TRIGGER {}").format(sql.Identifier(name)))


def _users(connection: PlainConnection) -> set[str]:
    """Return the connectors that use the triggers; refuse a schema of somebody else's."""
    users = _SHARED.users(connection)
    if users is None and connection.execute(_IS_THERE).fetchone() is not None:
        raise SetupError(
            "schema twofold exists, and twofold init has not made it; remedy: rename it, or set source.ddl_messages = false"
        )
    return users or set()
