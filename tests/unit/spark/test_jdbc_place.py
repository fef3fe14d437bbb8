"""A mirror in PostgreSQL, where other transactions or the server are in the way of a statement."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest

from twofold_spark.errors import SetupError, TableRefused
from twofold_spark.sinks import jdbc_tables
from twofold_spark.sinks.cuts import Cut, GlobalCut
from twofold_spark.sinks.interface import MirrorTable, TableBatch
from twofold_spark.sinks.jdbc_sink import JdbcPlace, JdbcSink
from twofold_spark.sinks.jdbc_tables import MirrorDatabase, Names, Run, StatementRejected

NOTHING = cast("Any", None)
TABLE = MirrorTable("bank.public.t", "public", "t", ("id",))
CUT = GlobalCut(1, {"bank": Cut(1, 1, 0, whole=True, versions={}, backfilling=(), stopped=())})
DEADLOCK = ("40P01", "deadlock detected")
LOCKED = ("55P03", "canceling statement due to lock timeout")


def rejected(sqlstate: str, said: str) -> StatementRejected:
    return StatementRejected(said, f"org.postgresql.util.PSQLException: ERROR: {said}\nSQLSTATE {sqlstate}")


class Database:
    """Rejects the cut so often, and keeps what it takes."""

    def __init__(self, *errors: StatementRejected) -> None:
        self._errors = list(errors)
        self.committed: list[str] = []

    @contextmanager
    def transaction(self) -> Iterator[Run]:
        statements: list[str] = []
        yield statements.append
        if self._errors:
            raise self._errors.pop(0)
        self.committed += statements


def place_in(database: Database) -> JdbcPlace:
    place = JdbcPlace("")
    place._database = cast("Any", database)
    return place


@pytest.mark.parametrize("errors", [[DEADLOCK] * 4, [LOCKED] * 30, [DEADLOCK, LOCKED] * 4])
def test_a_publication_that_others_are_in_the_way_of_is_tried_again(errors: list[tuple[str, str]]) -> None:
    place = place_in(database := Database(*(rejected(*error) for error in errors)))
    place.publish(CUT)
    assert [statement.split()[0] for statement in database.committed] == ["SET", "LOCK", "SELECT", "INSERT"]
    assert place.last == CUT


def test_a_lock_that_stays_ends_the_job() -> None:
    place = place_in(Database(*(rejected(*LOCKED) for _ in range(31))))
    with pytest.raises(SetupError, match=r"for 60 s .*idle in transaction"):
        place.publish(CUT)


@pytest.mark.parametrize("errors", [[DEADLOCK] * 5, [("42501", "permission denied for table cuts")]])
def test_any_other_rejection_of_the_cut_ends_the_job(errors: list[tuple[str, str]]) -> None:
    place = place_in(database := Database(*(rejected(*error) for error in errors)))
    with pytest.raises(StatementRejected, match=errors[0][1]):
        place.publish(CUT)
    assert not database.committed
    assert place.last is None


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (DEADLOCK, StatementRejected),
        (("53200", "out of memory"), StatementRejected),
        (("22003", "integer out of range"), TableRefused),
        (("0A000", "cannot alter type of a column used by a view or rule"), TableRefused),
        (("25006", "cannot execute MERGE in a read-only transaction"), StatementRejected),
    ],
)
def test_only_what_the_rows_cause_is_the_refusal_of_a_table(error: tuple[str, str], kind: type[Exception]) -> None:
    sink = JdbcSink(NOTHING, "bank", NOTHING, cast("Any", SimpleNamespace(url="")), Names())
    sink._staged[TABLE] = TableBatch(NOTHING, None, replace=False, unchanged=())

    def reject(_: str) -> NoReturn:
        raise rejected(*error)

    with pytest.raises(kind, match=error[1]):
        sink.merge_staged(reject)


def test_a_session_whose_tasks_may_run_twice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the two would commit its rows into the staging table."""
    monkeypatch.setattr(jdbc_tables, "check_time_zone", lambda _: None)
    session = cast("Any", SimpleNamespace(conf={"spark.speculation": "true"}))
    with pytest.raises(SetupError, match=r"submit with --conf spark\.speculation=false$"):
        MirrorDatabase("").open(session)
