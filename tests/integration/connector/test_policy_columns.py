"""The data policy goes by what a column is: its values stay hidden under each name, and in each
partition. One walk over DDL in a connector that runs, plain and prepared, in one that does not, and
in one that is killed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fixtures.connector import Installation, Maker, wait_until
from helpers.connector.canary import TEXT, raw, sings
from twofold.errors import Refused
from twofold.stack import PostgresServer

CASES = {
    "renamed": ["RENAME email TO mail"],
    "beside": ["RENAME email TO email_old", "ADD email text"],
    "taken": ["DROP contact", "RENAME email TO contact"],
    "exchanged": ["RENAME email TO x", "RENAME contact TO email", "RENAME x TO contact"],
    "again": ["DROP contact", "RENAME email TO contact", "ADD email text"],
    "replaced": ["DROP email", "ADD email text"],
}
WHEN = ["live", "prepared", "away", "killed"]
HIDDEN_NOW = {"renamed": "mail", "beside": "email_old", "taken": "contact", "exchanged": "contact", "again": "contact"}


def row(table: str, number: int) -> str:
    return f"INSERT INTO {table} (id, contact, email, phone) VALUES ({number}, 'c', '{TEXT}', 'p')"


def statements(table: str, case: str) -> list[str]:
    """Rows before and behind the DDL, in one transaction; a second change of each comes later."""
    return [row(table, 2), *(f"ALTER TABLE {table} {each}" for each in CASES[case]), f"UPDATE {table} SET phone = 'q'"]


def make(here: Installation) -> None:
    tables = [f"{when}.{case}" for when in WHEN for case in CASES]
    here.sql(
        "CREATE TABLE account (id int PRIMARY KEY, version int NOT NULL, note text)",
        *(f"CREATE SCHEMA {when}" for when in WHEN),
        *(f"CREATE TABLE {table} (id int PRIMARY KEY, contact text, email text, phone text)" for table in tables),
        *(row(table, 1) for table in tables),
        "CREATE SCHEMA parts",
        "CREATE TABLE parts.root (id int PRIMARY KEY, email text) PARTITION BY RANGE (id)",
        "CREATE TABLE parts.leaf PARTITION OF parts.root FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE parts.later (email text, id int PRIMARY KEY)",
        f"INSERT INTO parts.root VALUES (1, '{TEXT}')",
        "CREATE SCHEMA tree",
        "CREATE TABLE tree.root (id int PRIMARY KEY, email text) PARTITION BY RANGE (id)",
        part(1),
        f"INSERT INTO tree.root VALUES (1, '{TEXT}')",
        "CREATE TABLE tree.beside (id int PRIMARY KEY, mail text, pin text)",
        f"INSERT INTO tree.beside VALUES (6, 'm', '{TEXT}')",
    )


def hiding(
    connector: Maker, folder: Path, column: str, action: str, source: dict[str, Any], **rest: Any
) -> Installation:
    """A connector with one rule, before `init`, and the table of the marks."""
    (folder / "policy.key").write_bytes(b"k" * 40)
    here = connector(
        init=False,
        policy={"key_file": str(folder / "policy.key"), "columns": [{"column": column, "action": action}]},
        source={"backfill": False, **source},
        **rest,
    )
    here.sql("CREATE TABLE account (id int PRIMARY KEY, version int NOT NULL, note text)")
    return here


def part(number: int) -> str:
    """It has the ids from its number to the next one."""
    return f"CREATE TABLE tree.leaf_{number} PARTITION OF tree.root FOR VALUES FROM ({number}) TO ({number + 1})"


def via_root(here: Installation, value: str) -> str:
    return f"ALTER PUBLICATION {here.prefix} SET (publish_via_partition_root = {value})"


def renamed_in_a_tree(here: Installation) -> None:
    """The column has its new name before these tables have topics: partitions, one of a prepared
    transaction too, the root, one that was detached, and one that was published via the root. Or it
    has one already, hides another column there, and is attached.
    """
    here.sql("ALTER TABLE tree.root RENAME email TO mail", part(2), f"INSERT INTO tree.root VALUES (2, '{TEXT}')")
    here.prepare("part", part(3), f"INSERT INTO tree.root VALUES (3, '{TEXT}')")
    here.sql("COMMIT PREPARED 'part'")
    hidden_there(here, leaf_2=2, leaf_3=3)
    here.sql(via_root(here, "true"), part(4), part(5))
    here.sql(*(f"INSERT INTO tree.root VALUES ({number}, '{TEXT}')" for number in (4, 5)))
    hidden_there(here, root=5)
    here.sql("ALTER TABLE tree.root DETACH PARTITION tree.leaf_4")
    hidden_there(here, leaf_4=4)
    here.sql(via_root(here, "false"))
    hidden_there(here, leaf_5=5)
    here.sql("ALTER TABLE tree.root ADD pin text")
    here.sql("ALTER TABLE tree.root ATTACH PARTITION tree.beside FOR VALUES FROM (6) TO (8)")
    here.sql(f"INSERT INTO tree.root VALUES (7, '{TEXT}', '{TEXT}')")
    here.caught_up()
    wait_until(lambda: {"id": 7, "mail": None, "pin": None} in rows(here, "tree.beside"))


def hidden_there(here: Installation, **ids: int) -> None:
    """Wait until tables of the tree have topics with these rows, of which nothing is shown."""
    here.caught_up()
    wanted = [(f"tree.{table}", {"id": number, "mail": None}) for table, number in ids.items()]
    wait_until(lambda: all(row in rows(here, table) for table, row in wanted))
    assert not songs(here)


def test_what_was_hidden_stays_hidden_under_each_name_and_in_each_partition(connector: Maker, tmp_path: Path) -> None:
    walk(connector, tmp_path, told=False)


def test_a_partition_hides_what_its_root_hid_if_no_look_at_the_catalog_met_it_as_one(
    connector: Maker, tmp_path: Path
) -> None:
    source = {"tables": ["public.account", "tree.*"], "publish_via_root": True}
    here = hiding(connector, tmp_path, "tree.root.email", "null", source, backfill={"notice": 0})
    here.sql(
        "CREATE SCHEMA tree",
        "CREATE TABLE tree.root (id int PRIMARY KEY, email text) PARTITION BY RANGE (id)",
        part(1),
        f"INSERT INTO tree.root VALUES (1, '{TEXT}')",
    )
    here.initialise()
    with here.carrying():
        here.caught_up()  # the one look is at the start
        here.sql(part(2), f"INSERT INTO tree.root VALUES (2, '{TEXT}')")
        wait_until(lambda: {"id": 2, "email": None} in rows(here, "tree.root"))
        here.sql("ALTER TABLE tree.root DETACH PARTITION tree.leaf_2")
        here.sql(f"UPDATE tree.leaf_2 SET email = email || '{TEXT}'")
        here.caught_up()
        wait_until(lambda: {"id": 2, "email": None} in rows(here, "tree.leaf_2"))
    assert not songs(here)


def test_a_hidden_column_that_is_dropped_hides_no_other_one_in_a_prepared_transaction(
    connector: Maker, tmp_path: Path
) -> None:
    source = {"tables": ["public.account", "public.t"]}
    here = hiding(connector, tmp_path, "public.t.email", "drop", source)
    here.sql("CREATE TABLE t (id int PRIMARY KEY, email text, contact text, phone text)")
    here.initialise()
    with here.carrying():
        here.sql(f"INSERT INTO t VALUES (1, '{TEXT}', 'c', 'p')", "ALTER TABLE t DROP email")
        here.sql("INSERT INTO t VALUES (2, 'c', 'p')")
        here.caught_up()
    with here.carrying():  # a session, in which the table is described by a prepared transaction first
        here.prepare("x", "INSERT INTO t VALUES (3, 'c', 'p')")
        here.sql("COMMIT PREPARED 'x'", "INSERT INTO t VALUES (4, 'c', 'p')")
        here.caught_up()
    found = sorted(rows(here, "public.t"), key=lambda each: str(each["id"]))
    assert found == [{"id": each, "contact": "c", "phone": "p"} for each in (1, 2, 3, 4)]
    assert not songs(here)


def test_a_column_that_is_not_sent_shows_no_hidden_one_of_a_stream_that_lags(connector: Maker, tmp_path: Path) -> None:
    """The generated column counts in the catalog, and the hidden one came a place earlier."""
    here = hiding(connector, tmp_path, "public.t.email", "drop", {"tables": ["public.account", "public.t"]})
    here.sql(
        "CREATE TABLE t (id int PRIMARY KEY, next int GENERATED ALWAYS AS (id + 1) STORED, contact text, email text)"
    )
    here.initialise()
    with here.carrying():
        here.sql(f"INSERT INTO t VALUES (1, DEFAULT, 'c', '{TEXT}')")
        here.caught_up()
    here.sql("ALTER TABLE t RENAME email TO email_old", "ALTER TABLE t ADD email text")
    here.sql(f"INSERT INTO t VALUES (2, DEFAULT, 'c', '{TEXT}', '{TEXT}')", "ALTER TABLE t DROP email_old")
    with here.carrying():
        here.caught_up()
    assert sorted(rows(here, "public.t"), key=str) == [{"id": each, "contact": "c"} for each in (1, 2)]
    assert not songs(here)


def test_a_hidden_column_that_takes_a_names_place_within_a_load_stays_hidden(connector: Maker, tmp_path: Path) -> None:
    """The relation is the same before and behind, and the stream has no row that would tell."""
    source = {"tables": ["public.account", "public.t"], "backfill": True}
    here = hiding(connector, tmp_path, "public.t.email", "null", source, backfill={"notice": 60, "chunk_rows": 10})
    here.sql("CREATE TABLE t (id int PRIMARY KEY, contact text, email text)")
    here.sql(f"INSERT INTO t SELECT n, 'c', '{TEXT}' FROM generate_series(1, 3000) n")
    here.initialise()
    with here.carrying():
        wait_until(lambda: rows(here, "public.t"), what="the first chunk")
        here.sql(
            "BEGIN; ALTER TABLE t DROP contact, ADD phone text; ALTER TABLE t RENAME email TO contact; ALTER TABLE t RENAME phone TO email; COMMIT"
        )
        assert len(rows(here, "public.t")) < 3000, "the load is over"
        wait_until(lambda: any(row["id"] == 3000 for row in rows(here, "public.t")), what="the load's end")
    assert not songs(here)


@pytest.mark.slow
@pytest.mark.parametrize("told", [False, True], ids=["untold", "told"])
@pytest.mark.parametrize("version", ["15", "18"])
def test_it_does_on_each_version_with_event_triggers_too(
    connector: Maker, own_postgres: Callable[..., PostgresServer], tmp_path: Path, version: str, told: bool
) -> None:
    walk(connector, tmp_path, told=told, conninfo=own_postgres(version=version).dsn())


def walk(connector: Maker, tmp_path: Path, *, told: bool, **where: str) -> None:
    (tmp_path / "policy.key").write_bytes(b"k" * 40)
    rules = {f"{when}.{case}.email": "hash" for when in WHEN for case in CASES}
    rules |= {"parts.root.email": "null", "tree.root.email": "null", "tree.beside.pin": "null"}
    columns = [{"column": column, "action": action} for column, action in rules.items()]
    here = connector(
        init=False,
        policy={"key_file": str(tmp_path / "policy.key")},
        source={
            "tables": ["public.account", *(f"{when}.*" for when in WHEN), "parts.root", "tree.*"],
            "publish_via_root": False,
            "ddl_messages": told,
        },
        backfill={"notice": 0.3},
        prepared={"pool": 2},
        **where,
    )
    make(here)
    here.configure({"policy": {"columns": [*columns, {"column": "parts.rot.email", "action": "hash"}]}})
    assert "parts.rot.email (hash) match no column" in refused(here)
    here.configure({"policy": {"columns": columns}})
    here.initialise()
    with here.carrying():
        wait_until(lambda: all(last(here, table)["id"] == 1 for table in topics()))
        for case in CASES:
            here.sql("BEGIN; " + "; ".join(statements(f"live.{case}", case)) + "; COMMIT")
            here.prepare(case, *statements(f"prepared.{case}", case))
        here.sql(f"INSERT INTO parts.later VALUES ('{TEXT}', 11)")  # not published
        here.sql("ALTER TABLE parts.root ATTACH PARTITION parts.later FOR VALUES FROM (10) TO (20)")
        here.sql(f"INSERT INTO parts.root VALUES (2, '{TEXT}'), (12, '{TEXT}')")
        here.caught_up()
        assert not songs(here)
        here.sql(*(f"COMMIT PREPARED '{case}'" for case in CASES))
        here.sql(f"ALTER PUBLICATION {here.prefix} ADD TABLE parts.leaf, parts.later")
        here.sql("ALTER TABLE parts.root DETACH PARTITION parts.leaf", f"INSERT INTO parts.leaf VALUES (3, '{TEXT}')")
        renamed_in_a_tree(here)
        here.sql(*(f"UPDATE {when}.{case} SET phone = 'r'" for when in WHEN[:2] for case in CASES))
        here.caught_up()
        wait_until(lambda: all(last(here, f"{when}.{case}")["phone"] == "r" for when in WHEN[:2] for case in CASES))
    run = here.start()
    for case in CASES:
        here.sql("BEGIN; " + "; ".join(statements(f"killed.{case}", case)) + "; COMMIT")
    run.kill9()
    here.forget_runs()
    for case in CASES:
        here.sql("BEGIN; " + "; ".join(statements(f"away.{case}", case)) + "; COMMIT")
        here.sql(*(f"UPDATE {when}.{case} SET phone = 'r'" for when in WHEN[2:]))
    here.sql("ALTER TABLE parts.root DETACH PARTITION parts.later", f"INSERT INTO parts.later VALUES ('{TEXT}', 13)")
    with here.carrying():
        here.caught_up()
        wait_until(lambda: all(last(here, f"{when}.{case}")["phone"] == "r" for when in WHEN[2:] for case in CASES))
        wait_until(lambda: any(row["id"] == 13 for row in rows(here, "parts.later")))
    assert not songs(here)
    for when in WHEN:
        for case, name in HIDDEN_NOW.items():
            found = last(here, f"{when}.{case}")
            assert len(str(found[name])) == 64, f"{when}.{case}: {found}"
            assert found["phone"] == "r"
    assert {"id": 3, "email": None} in rows(here, "parts.leaf")


def topics() -> list[str]:
    return [f"{when}.{case}" for when in WHEN for case in CASES] + ["parts.leaf"]


def rows(here: Installation, table: str) -> list[dict[str, object]]:
    found = here.reader.read([f"{here.prefix}.{table}"])
    return [s.value["after"] for s in found if s.value and s.value["after"]]


def last(here: Installation, table: str) -> dict[str, object]:
    """The last row of a table that has rows of one key."""
    return (rows(here, table) or [{"phone": None, "id": None}])[-1]


def songs(here: Installation) -> list[str]:
    """The topics that have what is hidden."""
    return sorted({name for name, data in raw(here) if sings(data)})


def refused(here: Installation) -> str:
    try:
        here.initialise()
    except Refused as refusal:
        return refusal.what
    return ""
