"""Checks the publication and its tables: keys, replica identities, rights."""

from __future__ import annotations

from collections.abc import Iterator

from twofold.config import Config
from twofold.doctor.finding import SHOWN_MAX, Finder, Finding, Severity, start_over
from twofold.source.connection import PlainConnection
from twofold.source.flaws import find_flaws
from twofold.source.table_copier import missing_rights
from twofold_common.table_names import reload_command, sql_identifier

_finding = Finder("postgresql")
_PUBLICATION = "SELECT pubinsert, pubupdate, pubdelete, pubtruncate FROM pg_catalog.pg_publication WHERE pubname = %s"
_TABLES = """
SELECT n.nspname::text, c.relname::text, c.relreplident::text,
       EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND i.indisprimary),
       (SELECT string_agg(a.attname, ', ' ORDER BY a.attnum) FROM pg_catalog.pg_attribute a
         WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attstorage IN ('x', 'e') AND a.attlen = -1
           AND a.atttypid NOT IN ('pg_catalog.numeric'::pg_catalog.regtype))
  FROM pg_catalog.pg_publication_tables p
  JOIN pg_catalog.pg_namespace n ON n.nspname = p.schemaname
  JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
 WHERE p.pubname = %s
 ORDER BY 1, 2
"""


def published(config: Config, connection: PlainConnection) -> Iterator[Finding]:
    """Check the publication, then its tables."""
    yield from _publication(config, connection)
    yield from _flaws(config, connection)
    yield from _tables(config, connection)
    yield from _large_values(config, connection)
    yield from _rights(config, connection)


def _publication(config: Config, connection: PlainConnection) -> Iterator[Finding]:
    name = sql_identifier(config.publication)
    row = connection.execute(_PUBLICATION, (config.publication,)).fetchone()
    if row is None:
        used = connection.execute(
            "SELECT FROM pg_catalog.pg_replication_slots WHERE slot_name = %s", (config.slot,)
        ).fetchone()
        what = f"publication {config.publication} does not exist"
        if used is not None:
            yield _finding.must(
                "publication",
                what,
                "changes made while there is none are not sent, even if it is made again: it was dropped under a slot in use",
                *start_over(config.prefix),
            )
        elif config.source.tables:
            yield _finding.note("publication", what, "nothing is published before it exists", "twofold init")
        else:
            yield _finding.must(
                "publication",
                what,
                "twofold init refuses: source.tables is empty, so it cannot make the publication",
                f"CREATE PUBLICATION {name} FOR TABLE <schema.table>;",
                "-- or list the tables in source.tables, or correct source.publication",
                "twofold init",
            )
        return
    kinds = [kind for kind, there in zip(("insert", "update", "delete", "truncate"), row, strict=True) if not there]
    if kinds:
        yield _finding.should(
            "publication_kinds",
            f"publication {config.publication} leaves out: {', '.join(kinds)}",
            "the topics and every mirror of them will differ from the source",
            f"ALTER PUBLICATION {name} SET (publish = 'insert, update, delete, truncate');",
        )
    if connection.execute(_TABLES, (config.publication,)).fetchone() is None:
        yield _finding.should(
            "publication_empty",
            f"publication {config.publication} has no tables",
            "there is nothing to publish",
            f"ALTER PUBLICATION {name} ADD TABLE <schema.table>;",
        )


def _flaws(config: Config, connection: PlainConnection) -> Iterator[Finding]:
    for flaw in find_flaws(connection, config.publication):
        name = sql_identifier(flaw.schema, flaw.table)
        reload = reload_command(flaw.schema, flaw.table)
        yield _finding.must(
            "table_flaw", f"table {name}: {flaw.what}", flaw.at_stake, *flaw.repair, f"-- then {reload}"
        )


def _tables(config: Config, connection: PlainConnection) -> Iterator[Finding]:
    for schema, table, replica_identity, has_key, _ in _carried(config, connection)[:SHOWN_MAX]:
        name = sql_identifier(schema, table)
        alter = f"ALTER TABLE {name}"
        if replica_identity == "n":
            yield _finding.should(
                "identity_nothing",
                f"table {name} has REPLICA IDENTITY NOTHING",
                "PostgreSQL refuses UPDATE and DELETE of it while it is published",
                f"{alter} REPLICA IDENTITY {'DEFAULT' if has_key else 'FULL'};",
            )
        elif replica_identity == "d" and not has_key:
            yield _finding.should(
                "no_key",
                f"table {name} has no primary key",
                "PostgreSQL refuses UPDATE and DELETE of it while it is published; its rows have no message key and lie in one partition, and prepared transactions on it are parked from the start",
                f"{alter} REPLICA IDENTITY FULL;",
                f"-- or, better: {alter} ADD PRIMARY KEY (...);",
            )


def _large_values(config: Config, connection: PlainConnection) -> Iterator[Finding]:
    """Tell it of all tables at once: it holds for most, and is no fault."""
    wide = [
        (sql_identifier(schema, table), columns)
        for schema, table, replica_identity, has_key, columns in _carried(config, connection)
        if columns and replica_identity in {"d", "i"} and (has_key or replica_identity == "i")
    ]
    if wide:
        named = "; ".join(f"{name} ({columns})" for name, columns in wide[:SHOWN_MAX])
        more = f"; and {len(wide) - SHOWN_MAX} more" if len(wide) > SHOWN_MAX else ""
        yield _finding.note(
            "toast",
            f"tables may hold large values, and their replica identity is not FULL: {named}{more}",
            "an update that leaves a large value as it was is sent without it: the column is null and the record's list `unchanged` names it. A reader that does not look there (Debezium's JDBC sink, Flink) takes the null for the value. With FULL the value comes along, at the price of more WAL",
            *(f"ALTER TABLE {name} REPLICA IDENTITY FULL;" for name, _ in wide[:SHOWN_MAX]),
        )


def _rights(config: Config, connection: PlainConnection) -> Iterator[Finding]:
    """Look at every table: `init` and each load do, if the rows that are there are loaded."""
    shown = 0
    for schema, table, *_ in _carried(config, connection):
        if shown < SHOWN_MAX and (statements := missing_rights(connection, schema, table)):
            shown += 1
            yield _finding(
                "may_not_read",
                Severity.MUST if config.source.backfill else Severity.SHOULD,
                f"role {connection.info.user} may not read table {sql_identifier(schema, table)}",
                "the rows that are there already cannot be loaded; twofold init refuses, and so does a load"
                if config.source.backfill
                else "the rows that are there already cannot be loaded",
                *statements,
            )


def _carried(config: Config, connection: PlainConnection) -> list[tuple[str, str, str, bool, str | None]]:
    """Return the published tables that are no outboxes, as `_TABLES` has them."""
    outboxes = {rule.name for rule in config.outbox}
    rows = connection.execute(_TABLES, (config.publication,)).fetchall()
    return [row for row in rows if row[:2] not in outboxes]
