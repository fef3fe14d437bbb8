"""Changes of tables that PostgreSQL does not send, or that it sends under another name: the topic
is reloaded or named as stale. One walk over all of them, in a connector that runs and in one that
does not; each topic is folded by a reader of its own and compared with the table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from fixtures.connector import Installation, Maker, wait_until
from helpers.connector.topics import fold
from twofold.descriptions.staleness import AWAY
from twofold.doctor import postgres
from twofold.stack import PostgresServer

ROWS = "SELECT n, n, 'note ' || n FROM generate_series(1, 4) n"
CHANGED = ("UPDATE {} SET v = v + 100 WHERE id = 1", "DELETE FROM {} WHERE id = 2")
KEY_LOST = ("INSERT INTO {t} VALUES (1, 70, 'second')", "DELETE FROM {t} WHERE id = 1 AND v <> 70")


@dataclass(frozen=True)
class Case:
    """A table and what is done to it. {t} is its name, {s} its schema, {n} its bare name, {p} the
    publication.
    """

    name: str
    change: tuple[str, ...]
    columns: str = "id int PRIMARY KEY, v int, note text"
    made: tuple[str, ...] = ()
    """Statements behind CREATE TABLE and the rows."""
    published: str = ""
    """What follows its name in the publication."""
    rows: str = "SELECT * FROM {t}"
    together: bool = False
    """In one transaction."""


def elsewhere(away: str, back: str, *, by: str) -> tuple[str, ...]:
    return away, *(each.format(by) for each in CHANGED), back


RENAMED = elsewhere("ALTER TABLE {t} RENAME TO x_{n}", "ALTER TABLE {s}.x_{n} RENAME TO {n}", by="{s}.x_{n}")
CASES = [
    Case("renamed", RENAMED),
    Case("renamed_at_once", RENAMED, together=True),
    Case("moved", elsewhere("ALTER TABLE {t} SET SCHEMA other", "ALTER TABLE other.{n} SET SCHEMA {s}", by="other.{n}")),
    Case(
        "swapped",
        (
            "ALTER TABLE {t} RENAME TO x_{n}", "ALTER TABLE {s}.y_{n} RENAME TO {n}",
            "UPDATE {t} SET v = 8 WHERE id = 1", "UPDATE {s}.x_{n} SET v = 9 WHERE id = 1",
            "ALTER TABLE {t} RENAME TO y_{n}", "ALTER TABLE {s}.x_{n} RENAME TO {n}",
        ),
        made=("CREATE TABLE {s}.y_{n} (LIKE {t} INCLUDING ALL)", "INSERT INTO {s}.y_{n} TABLE {t}"),
        published=", TABLE {s}.y_{n}",
    ),
    Case("schema_renamed", elsewhere("ALTER SCHEMA {s} RENAME TO x_{s}", "ALTER SCHEMA x_{s} RENAME TO {s}", by="x_{s}.{n}")),
    Case(
        "index_away", ("DROP INDEX {s}.i_{n}", *KEY_LOST, "CREATE UNIQUE INDEX i_{n} ON {t} (id)"), "id int NOT NULL, v int, note text",
        ("ALTER TABLE {t} REPLICA IDENTITY FULL", "CREATE UNIQUE INDEX i_{n} ON {t} (id)"), together=True,
    ),
    Case(
        "primary_key_away", ("ALTER TABLE {t} DROP CONSTRAINT {n}_pkey", *KEY_LOST, "ALTER TABLE {t} ADD PRIMARY KEY (id)"),
        made=("ALTER TABLE {t} REPLICA IDENTITY FULL",), together=True,
    ),
    Case("rewritten", ("ALTER TABLE {t} ALTER v TYPE int USING v + 100",)),
    Case("column_replaced", ("ALTER TABLE {t} DROP v, ADD v int",)),
    Case("column_dropped_and_added", ("ALTER TABLE {t} DROP v", "INSERT INTO {t} VALUES (9)", "ALTER TABLE {t} ADD v int")),
    Case("column_with_default", ("ALTER TABLE {t} ADD more int DEFAULT 7",)),
    Case("column_renamed", ("ALTER TABLE {t} RENAME note TO remark",)),
    Case("label_renamed", ("ALTER TYPE {s}.mood RENAME VALUE 'sad' TO 'blue'",), made=("CREATE TYPE {s}.mood AS ENUM ('sad', 'glad')", "ALTER TABLE {t} ADD m {s}.mood DEFAULT 'sad'")),
    Case(
        "label_renamed_and_back",
        ("ALTER TYPE {s}.mood RENAME VALUE 'sad' TO 'blue'", "INSERT INTO {t} VALUES (9, 9, '', 'blue')", "ALTER TYPE {s}.mood RENAME VALUE 'blue' TO 'sad'"),
        made=("CREATE TYPE {s}.mood AS ENUM ('sad', 'glad')", "ALTER TABLE {t} ADD m {s}.mood DEFAULT 'sad'"), together=True,
    ),
    Case("attribute_added", ("ALTER TYPE {s}.pair ADD ATTRIBUTE b int",), made=("CREATE TYPE {s}.pair AS (a int)", "ALTER TABLE {t} ADD p {s}.pair DEFAULT ROW(1)"), rows="SELECT id, v, note, p::text FROM {t}"),
    Case(
        "filter_narrowed", ("ALTER PUBLICATION {p} DROP TABLE {t}", "ALTER PUBLICATION {p} ADD TABLE {t} WHERE (id < 3)"),
        published=" WHERE (id < 4)", rows="SELECT * FROM {t} WHERE id < 3", together=True,
    ),
    Case(
        "filter_widened", ("ALTER PUBLICATION {p} DROP TABLE {t}", "ALTER PUBLICATION {p} ADD TABLE {t}"),
        published=" WHERE (id < 3)", together=True,
    ),
    Case("list_widened", ("ALTER PUBLICATION {p} DROP TABLE {t}", "ALTER PUBLICATION {p} ADD TABLE {t}"), published=" (id, v)", together=True),
    Case("filter_voided", ("ALTER PUBLICATION {p} ADD TABLES IN SCHEMA {s}",), published=" WHERE (id < 3)"),
    Case("taken_out", elsewhere("ALTER PUBLICATION {p} DROP TABLE {t}", "ALTER PUBLICATION {p} ADD TABLE {t}", by="{t}")),
]  # fmt: skip


TOLD = [
    Case("column_renamed_and_back", ("ALTER TABLE {t} RENAME v TO w", "UPDATE {t} SET w = w + 100 WHERE id = 1", "ALTER TABLE {t} RENAME w TO v")),
    Case(
        "unlogged_and_back",
        (
            "ALTER PUBLICATION {p} DROP TABLE {t}", "ALTER PUBLICATION {p} ADD TABLES IN SCHEMA {s}", "ALTER TABLE {t} SET UNLOGGED",
            *(each.format("{t}") for each in CHANGED), "ALTER TABLE {t} SET LOGGED",
        ),
        "id int PRIMARY KEY, v int, note name",
    ),
]  # fmt: skip
"""What is noticed by the messages of event triggers alone, if no look lies between."""


OF_18 = [
    Case("generated_later", ("ALTER PUBLICATION {p} SET (publish_generated_columns = stored)",), "id int PRIMARY KEY, v int, note text, twice int GENERATED ALWAYS AS (id * 2) STORED"),
]  # fmt: skip


WHILE_AWAY = {
    "renamed",
    "moved",
    "index_away",
    "column_dropped_and_added",
    "column_with_default",
    "filter_narrowed",
    "taken_out",
}
WHEN = {"live": CASES, "away": [case for case in CASES if case.name in WHILE_AWAY]}
"""The cases that are tried while the connector runs, and while it does not."""


class Walk:
    """A connector with a table for each case."""

    def __init__(self, here: Installation, when: dict[str, list[Case]], *, prepared: bool = False) -> None:
        self.here, self.when, self._prepared = here, when, prepared

    def names(self, case: Case, when: str) -> dict[str, str]:
        schema, name = f"{when}_{case.name}", case.name
        return {"t": f"{schema}.{name}", "s": schema, "n": name, "p": self.here.prefix}

    def make(self) -> None:
        here, published = self.here, []
        here.sql("CREATE TABLE account (id int PRIMARY KEY, version int NOT NULL, note text)", "CREATE SCHEMA other")
        for when, cases in self.when.items():
            for case in cases:
                names = self.names(case, when)
                table = (f"CREATE SCHEMA {names['s']}", f"CREATE TABLE {names['t']} ({case.columns})")
                here.sql(*table, f"INSERT INTO {names['t']} {ROWS}", *(each.format(**names) for each in case.made))
                published.append(f"TABLE {names['t']}{case.published.format(**names)}")
        here.sql(
            "CREATE SCHEMA p",
            "CREATE TABLE p.root (id int PRIMARY KEY, v int) PARTITION BY RANGE (id)",
            "CREATE TABLE p.leaf PARTITION OF p.root FOR VALUES FROM (0) TO (10)",
            "INSERT INTO p.root SELECT n, n FROM generate_series(1, 4) n",
            f"CREATE PUBLICATION {here.prefix} FOR TABLE account, TABLE p.root, {', '.join(published)}",
        )
        here.initialise()

    def change(self, when: str) -> None:
        for case in self.when[when]:
            statements = [each.format(**self.names(case, when)) for each in case.change]
            if self._prepared:
                self.here.prepare(case.name, *statements)
                self.here.sql(f"COMMIT PREPARED '{case.name}'")
                continue
            self.here.sql(*(["BEGIN; " + "; ".join(statements) + "; COMMIT"] if case.together else statements))

    def is_known(self) -> bool:
        """Whether each table's description is in its pin, and none is being loaded."""
        pins = {
            r["schema"] + r["table"]: r for r in self.here.records("progress") if isinstance(r, dict) and "stored" in r
        }
        return len(pins) >= sum(map(len, self.when.values())) + 2 and all(
            p["stored"] and p["backfill"] == "ready" for p in pins.values()
        )

    def wrong(self, when: str) -> dict[str, Any]:
        """The tables whose topics say something else, with both."""
        tables = {case: self.names(case, when) for case in self.when[when]}
        topics = {f"{self.here.prefix}.{names['t']}": case for case, names in tables.items()}
        states: dict[Case, dict[tuple[int, str], Any]] = {case: {} for case in tables}
        for seen in self.here.reader.read(topics):
            fold(states[topics[seen.topic]], seen)
        found = {}
        for case, names in tables.items():
            has = self.rows(case.rows.format(**names))
            columns = has[0].keys()
            rows = [{column: row.get(column) for column in columns} for row in states[case].values()]
            if sorted(rows, key=lambda row: row["id"]) != has:
                found[case.name] = rows, has
        return found

    def is_away(self, table: str) -> bool:
        pins = [r for r in self.here.records("progress") if isinstance(r, dict) and r.get("table") == table]
        return bool(pins) and pins[-1]["stored"] == AWAY

    def has_the_root(self, table: str) -> bool:
        """Whether the table's topic has the rows of the partitioned table."""
        state: dict[tuple[int, str], Any] = {}
        for seen in self.here.reader.read([f"{self.here.prefix}.{table}"]):
            fold(state, seen)
        return sorted(state.values(), key=lambda row: int(row["id"])) == self.rows("SELECT * FROM p.root")

    def rows(self, query: str) -> list[dict[str, Any]]:
        return list(self.here.ask(f"SELECT jsonb_agg(to_jsonb(r) ORDER BY r.id) FROM ({query}) r"))


def test_every_topic_says_what_its_table_has(connector: Maker, caplog: pytest.LogCaptureFixture) -> None:
    here = connector(init=False, source={"tables": []}, backfill={"notice": 0.3})
    walk = Walk(here, WHEN)
    walk.make()
    with here.carrying():
        wait_until(walk.is_known, 90, "each description is pinned")
        walk.change("live")
        here.caught_up()
        assert not stays_wrong(walk, "live")
        publication = f"ALTER PUBLICATION {here.prefix} SET (publish = 'insert{{}}')"
        here.sql(
            publication.format(""), "DELETE FROM p.leaf WHERE id = 1", publication.format(", update, delete, truncate")
        )
        wait_until(lambda: "p.leaf" in {each.table for each in here.status().stale}, 90, "it is named")
        assert any("table p.leaf may be stale" in found.what for found in postgres.find_stale(here.config))
        here.caught_up()
        named = {each.topic for each in here.status().stale}
        assert set(here.records("commits")[-1]["stale"]) == named
    walk.change("away")
    with here.carrying():
        here.caught_up()
        assert not stays_wrong(walk, "away")


@pytest.mark.parametrize("told", [False, True], ids=["untold", "told"])
def test_a_partitioned_tables_new_column_has_a_default(connector: Maker, told: bool) -> None:
    """The catalog has the value of older rows at the leaves alone."""
    here = connector(init=False, source={"tables": [], "ddl_messages": told}, backfill={"notice": 0.3})
    walk = Walk(here, {"live": CASES[:1]})
    walk.make()
    here.sql(
        f"ALTER PUBLICATION {here.prefix} SET (publish_via_partition_root = true)",
        "CREATE TABLE p.branch PARTITION OF p.root FOR VALUES FROM (10) TO (20) PARTITION BY RANGE (id)",
        "CREATE TABLE p.twig PARTITION OF p.branch FOR VALUES FROM (10) TO (20)",
        "INSERT INTO p.root VALUES (11, 11)",
    )
    with here.carrying():
        wait_until(partial(walk.has_the_root, "p.root"), 90, "it is loaded")
        wait_until(walk.is_known, 90, "its description is pinned")
        here.sql("ALTER TABLE p.root ADD w int DEFAULT 7", "INSERT INTO p.root VALUES (12, 12)")
        wait_until(partial(walk.has_the_root, "p.root"), 90, "it is reloaded")
        reloads = [commit for commit in here.records("commits") if commit["kind"] == "reload"]
        here.sql("ALTER TABLE p.root ADD x int", "UPDATE p.root SET x = 1")
        here.caught_up()
        wait_until(partial(walk.has_the_root, "p.root"), 90, "a column without a default needs no reload")
    assert len(reloads) == len([commit for commit in here.records("commits") if commit["kind"] == "reload"]) == 1
    assert here.status().stale == ()


@pytest.mark.slow
@pytest.mark.parametrize("prepared", [False, True], ids=["plain", "prepared"])
@pytest.mark.parametrize("version", ["15", "18"])
@pytest.mark.parametrize("told", [True, False], ids=["told", "untold"])
def test_with_and_without_event_triggers(
    connector: Maker, own_postgres: Callable[..., PostgresServer], version: str, told: bool, prepared: bool
) -> None:
    conninfo = own_postgres(version=version).dsn()
    here = connector(
        conninfo=conninfo, init=False, source={"tables": [], "ddl_messages": told}, backfill={"notice": 0.3}
    )
    cases = [*CASES, *(TOLD if told else ())]
    live = [*cases, *(OF_18 if version == "18" else ())]
    # Where a table has a column list, no schema may be published.
    later = [case for case in cases if case.name != "list_widened"]
    passed_by = [case for case in later if told and case not in TOLD]
    walk = Walk(here, {"live": live, "away": later, "killed": later, "passed_by": passed_by}, prepared=prepared)
    walk.make()
    with here.carrying():
        wait_until(walk.is_known, 90, "each description is pinned")
        walk.change("live")
        here.caught_up(180)
        assert not stays_wrong(walk, "live")
        for topic, option in (("p.root", "true"), ("p.leaf", "false"), ("p.root", "true"), ("p.leaf", "false")):
            here.sql(
                f"ALTER PUBLICATION {here.prefix} SET (publish_via_partition_root = {option})",
                "UPDATE p.root SET v = v + 10 WHERE id > 1",
                "INSERT INTO p.root SELECT max(id) + 1, 0 FROM p.root",
                "DELETE FROM p.root WHERE id = (SELECT min(id) FROM p.root)",
            )
            here.caught_up(180)
            wait_until(partial(walk.has_the_root, topic), 45, topic)
            if not told and topic == "p.root":
                wait_until(partial(walk.is_away, "leaf"), 90, "a look has not found the partition")
    walk.change("away")
    with here.carrying():
        here.caught_up(180)
        assert not stays_wrong(walk, "away")
    run = here.start()
    walk.change("killed")
    run.kill9()
    here.forget_runs()
    with here.carrying():
        here.caught_up(180)
        assert not stays_wrong(walk, "killed")
        if passed_by:
            here.sql(*(f"ALTER EVENT TRIGGER {each} DISABLE" for each in ("twofold_ddl", "twofold_drop")))
            walk.change("passed_by")
            here.caught_up(180)
            assert not stays_wrong(walk, "passed_by")


def stays_wrong(walk: Walk, when: str) -> dict[str, Any]:
    """The tables whose topics do not become right."""
    try:
        wait_until(lambda: not walk.wrong(when))
    except AssertionError:
        return walk.wrong(when)
    return {}
