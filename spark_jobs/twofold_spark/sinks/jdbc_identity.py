"""Which tables in PostgreSQL are those that the mirror made: their oids, beside their names.

A table that was restored from a dump, made again, or swapped by renames has the name, and lacks
changes that the last cut has. Its oid is another one. PostgreSQL's own rewrites of a table (VACUUM
FULL, a wider column, a TRUNCATE) keep it.

A restore of the whole database gives new oids to all tables, and is consistent: the cut is as old
as the rows. So each row of `mirrored` also says in which place it was written. The oid of the
table of cuts is part of that, and a start that finds another place records all oids again. Tables
that have their oids there lie beside cuts that were restored alone.
"""

from __future__ import annotations

import json

from twofold_common.table_names import quote_identifier, quote_literal
from twofold_spark.errors import Refused, TableRefused
from twofold_spark.sinks.interface import MirrorTable
from twofold_spark.sinks.jdbc_tables import Names, Run, read_columns
from twofold_spark.sources.topic_names import reload_command

_MIRRORED = """
CREATE SCHEMA IF NOT EXISTS {schema};
CREATE TABLE IF NOT EXISTS {schema}.mirrored (
    name text PRIMARY KEY, prefix text NOT NULL, key text[] NOT NULL, relid oid, place text)
"""
_ADD_COLUMNS = "ALTER TABLE {} ADD COLUMN IF NOT EXISTS relid oid, ADD COLUMN IF NOT EXISTS place text"
_PLACE = """
SELECT concat_ws('.', {system}, (SELECT oid FROM pg_database WHERE datname = current_database()),
       to_regclass('twofold.cuts')::oid)
"""
_SYSTEM = "(SELECT system_identifier FROM pg_control_system())"
"""A dump that is restored in two new servers may have the same oids in both."""


def create_list(run: Run, names: Names) -> None:
    """Make the list of the mirror's tables."""
    run(_MIRRORED.format(schema=quote_identifier(names.schema("twofold"))))
    mirrored = names.own("mirrored")
    if "place" not in read_columns(run, mirrored):  # ALTER TABLE waits for readers, also with nothing to add
        run(_ADD_COLUMNS.format(mirrored))


def record_new(run: Run, names: Names) -> None:
    """Record the oids of the tables that have none in this place."""
    here = _read_place(run)
    unknown = (
        f"SELECT json_agg(json_build_array(name, relid::text, place)) FROM {names.own('mirrored')} "
        f"WHERE relid IS NULL OR place IS DISTINCT FROM {quote_literal(here)}"
    )
    for name, oid, place in json.loads(run(unknown) or "[]"):
        table = MirrorTable.by_name(name)
        if _is_same_database(place, here) and oid is not None and oid == read_oid(run, names.table(table)):
            raise _refuse_restored_cuts()
        _record(run, names, table, here)


def record(run: Run, names: Names, table: MirrorTable) -> None:
    """Keep the present oid of a table."""
    _record(run, names, table, _read_place(run))


def lock_and_check(run: Run, names: Names, table: MirrorTable, *, is_shared: bool) -> None:
    """Refuse a table that the mirror did not make, and keep the name as it is until the commit."""
    run(f"LOCK TABLE {names.table(table)} IN ROW EXCLUSIVE MODE")
    if not check(run, names, table, is_shared=is_shared):
        record(run, names, table)


def check(run: Run, names: Names, table: MirrorTable, *, is_shared: bool) -> bool:
    """Refuse a table that is not the one that the mirror made; return whether its oid is recorded.

    A table that is not there, or of which nothing is recorded, is for others to judge.
    """
    name, mirrored = names.table(table), names.own("mirrored")
    known = run(
        f"SELECT json_build_array(relid::text, to_regclass({quote_literal(name)})::oid::text, coalesce(place, '')) "
        f"FROM {mirrored} WHERE name = {quote_literal(str(table))}"
    )
    recorded, present, place = json.loads(known) if known is not None else (None, None, "")
    if recorded is None or present in (None, recorded):
        return recorded is not None
    if place != _read_place(run):
        raise refuse_restored_place()
    reload = f"`{reload_command(table)}`"
    if is_shared:
        reload = f"start the mirror again with --on-table-error go-on, then in each shard {reload}"
    raise TableRefused(
        f"the table {name} is not the one that the mirror made: it alone was restored from a backup, or made again",
        at_stake="the changes in between, which would be missing",
        repair=f"drop the mirror's table (DROP TABLE {name}), then {reload}. If it has all rows of the last cut: "
        f"UPDATE {mirrored} SET relid = NULL WHERE name = {quote_literal(str(table))}",
    )


def _record(run: Run, names: Names, table: MirrorTable, place: str) -> None:
    """Keep the present oid; 0 if the table is not there, so that none is taken for it later."""
    run(
        f"UPDATE {names.own('mirrored')} SET relid = coalesce(to_regclass({quote_literal(names.table(table))})::oid, 0), "
        f"place = {quote_literal(place)} WHERE name = {quote_literal(str(table))}"
    )


def read_oid(run: Run, name: str) -> str | None:
    return run(f"SELECT to_regclass({quote_literal(name)})::oid")


def refuse_restored_place() -> Refused:
    """Make the refusal of a place whose cut may be older than that which the job knows."""
    return Refused(
        "the database was restored while the job ran",
        at_stake="the changes since the restored cut, which would be missing",
        repair="start again: the job reads on from the restored cut",
    )


def _refuse_restored_cuts() -> Refused:
    return Refused(
        "twofold.cuts was restored or made again without the tables that it is about",
        at_stake="a second time the changes behind the restored cut, which the tables have",
        repair="restore the whole database from one backup; or drop it, and begin the mirror again in an empty one",
    )


def _read_place(run: Run) -> str:
    """Return what no other database has, nor this one after a restore; the role may lack the right
    to read the server's part of it.
    """
    may_read = run("SELECT has_function_privilege('pg_control_system()', 'EXECUTE')::text") == "true"
    return run(_PLACE.format(system=_SYSTEM if may_read else "null")) or ""


def _is_same_database(place: str | None, here: str) -> bool:
    """Whether oids of both places are of one database: the places say of which server they are."""
    return place is not None and here.count(".") == 2 and place.rpartition(".")[0] == here.rpartition(".")[0]
