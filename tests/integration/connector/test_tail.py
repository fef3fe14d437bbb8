"""`twofold tail`: whole transactions in the order of their commits, nothing of what is rolled back,
and foreign text that rules no terminal.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from typing import Any

import pytest

from fixtures.connector import Installation, Maker, Running
from twofold.inspect import tail
from twofold_avro.records import Commit, Range

HOSTILE = "a\nFORGED\x1b[2J\u202egnp.exe"


@pytest.fixture
def tailing(connector: Maker) -> Callable[..., tuple[Installation, Running]]:
    def start(*arguments: str, here: Installation | None = None) -> tuple[Installation, Running]:
        here = here or connector()
        seen = Running(here.command("tail", *arguments), here.folder / f"tail{len(here.runs)}.log", {})
        here.runs.append(seen)
        seen.wait_for("read_committed")
        return here, seen

    return start


def events(seen: Running) -> list[dict[str, Any]]:
    first, *lines = seen.said().splitlines()
    assert "read_committed" in first
    assert ".commits [0] from offset" in first
    return [json.loads(line) for line in lines]


@pytest.mark.core
def test_transactions_are_shown_whole_and_in_order(tailing: Callable[..., tuple[Installation, Running]]) -> None:
    here, seen = tailing("--json")
    here.carry()
    here.prepare("never", "INSERT INTO account VALUES (9, 9, 'never')")
    here.prepare("late", "INSERT INTO account VALUES (1, 1, 'x')", "INSERT INTO journal VALUES ('y')")
    here.sql(
        "BEGIN; INSERT INTO account SELECT i, i, 'bulk' FROM generate_series(10, 19) i; INSERT INTO journal VALUES ('z'); COMMIT",
        "ROLLBACK PREPARED 'never'",
        "COMMIT PREPARED 'late'",
        "DELETE FROM account WHERE id = 10",
        "INSERT INTO account VALUES (99, 0, 'the end')",
    )
    seen.wait_for("the end")
    here.caught_up()
    seen.wait_for("a mark")
    found = events(seen)
    whole: list[list[dict[str, Any]]] = []
    for each in found:
        if each["event"] == "begin":
            whole.append([])
        whole[-1].append(each)
    ours = [t for t in whole if (t[0]["kind"] in {"batch", "prepared"} and len(t) > 2) or t[0]["gid"]]
    for begin, *changes, end in ours:
        assert (begin["event"], end["event"]) == ("begin", "end")
        assert end["transaction"] == begin["transaction"]
        assert end["changes"] == len(changes)
        assert {c["value"]["transaction"]["id"] for c in changes if c["value"]} <= {begin["transaction"]}
        numbers = [c["value"]["transaction"]["total_order"] for c in changes if c["value"]]
        assert numbers == sorted(numbers)
    said = [[(c["op"], c["table"]) for c in changes] for _, *changes, _ in ours]
    assert said[0] == [("c", "public.account")] * 10 + [("c", "public.journal")], "rows of several partitions, sorted"
    assert said[1] == [("c", "public.account"), ("c", "public.journal")]
    assert ours[1][0]["gid"] == "late"
    assert said[2] == [("d", "public.account"), ("tombstone", None)]
    assert "never" not in seen.said()


def test_text_of_others_is_printable_and_one_table_is_shown_alone(
    tailing: Callable[..., tuple[Installation, Running]],
) -> None:
    here, seen = tailing("public.account")
    here.carry()
    with_text = here.twofold("tail", "public.acount")
    assert with_text.returncode == 2
    assert "did you mean public.account?" in with_text.stderr
    note = HOSTILE.replace("'", "''")
    here.sql("INSERT INTO journal VALUES ('other')", f"INSERT INTO account VALUES (1, 1, E'{note}')")
    seen.wait_for("gnp.exe")
    seen.wait_for("end    ")
    said = seen.said()
    assert all(each.isprintable() for each in said.replace("\n", "")), ascii(said)
    assert not any(line.startswith("FORGED") for line in said.splitlines())
    assert '  c public.account  {"id": 1, "version": 1, "note": "a\\nFORGED\\u001b[2J\\u202egnp.exe"}' in said
    assert "other" not in said
    seen.signal(signal.SIGINT)
    assert seen.ended() == 130
    assert "Traceback" not in seen.said()


def test_a_large_transaction_stands_between_its_boundaries(
    tailing: Callable[..., tuple[Installation, Running]],
) -> None:
    here, seen = tailing("--json")
    here.carry()
    many = tail.SORTED_MAX + 1
    here.sql(f"INSERT INTO account SELECT i, i, 'bulk' FROM generate_series(1, {many}) i")
    seen.wait_for(f'"changes": {many}')
    begin, *changes, end = next(
        [*events(seen)[at : at + many + 2]] for at, each in enumerate(events(seen)) if each["event"] == "begin"
    )
    assert begin["sequence"] == end["sequence"]
    assert len({c["value"]["after"]["id"] for c in changes}) == many


def test_before_init_the_remedy_is_named(connector: Maker) -> None:
    here = connector(init=False)
    done = here.twofold("tail")
    assert done.returncode == 3
    assert "run twofold init" in done.stderr


def test_rows_that_lie_apart_are_read_apart() -> None:
    def commit(sequence: int, kind: Any = "batch", rows: int = 1) -> Commit:
        return Commit(sequence, kind, 0, 0, 1, rows, ranges=(Range("t", 0, sequence, sequence, rows),))

    commits = [commit(1), commit(2), commit(3, "prepared"), commit(4), commit(5, rows=tail.SORTED_MAX), commit(6)]
    read = [[each.sequence for each in together] for together in tail._read_together(commits)]
    assert read == [[1, 2], [3], [4], [5], [6]]
