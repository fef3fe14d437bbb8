"""Which errors stop one table: those that its rows or files cause, and no failure of a server."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, cast

import pytest
from pyspark.errors import PySparkException, PySparkRuntimeError

from twofold_spark import errors
from twofold_spark.errors import (
    TableRefused,
    describe_causes,
    explain_conflict,
    explain_full_disk,
    explain_missing_right,
    explain_reading_catalog,
    explain_standstill,
)
from twofold_spark.mirror.batching import MirrorSettings
from twofold_spark.mirror.group_waiting import GroupMembership
from twofold_spark.mirror.mirror_job import Mirror
from twofold_spark.mirror.source_mirror import Batch
from twofold_spark.sinks.cuts import Cut, GlobalCut
from twofold_spark.sinks.interface import MirrorTable, Sink
from twofold_spark.sinks.place import Place
from twofold_spark.sinks.sharding import NO_SHARDING
from twofold_spark.sinks.table_errors import refuse_for_error
from twofold_spark.sources.commit_records import CommitRecord

TABLE = MirrorTable("bank.public.t", "public", "t", ("id",))
CARDINALITY = "[MERGE_CARDINALITY_VIOLATION] The ON search condition of the MERGE statement matched a single row twice."
INVARIANT = "org.apache.spark.sql.delta.schema.DeltaInvariantViolationException"
ABORTED = "org.apache.spark.SparkException: Job aborted: Task 0.0 (driver): "
FRAME = "\tat org.apache.spark.SparkRuntimeException.<init>(SparkRuntimeException.java:1)\n\t... 12 more\n"


def _of(*causes: str) -> str:
    """As py4j has a stack of causes, the outermost first."""
    first, *others = causes
    return f"An error occurred while calling o9.sql.\n: {first}\n{FRAME}" + "".join(
        f"Caused by: {each}\n{FRAME}" for each in others
    )


@pytest.mark.parametrize(
    "causes",
    [
        ("org.apache.spark.SparkException: Writing job aborted", f"org.apache.spark.SparkRuntimeException: {CARDINALITY}"),
        (f"{ABORTED}org.apache.spark.SparkRuntimeException: {CARDINALITY}",),
        ("org.apache.spark.SparkArithmeticException: [CAST_OVERFLOW] of a value",),
        ("org.apache.spark.sql.catalyst.ExtendedAnalysisException: [UNRESOLVED_COLUMN] `v`",),
        ("org.apache.spark.SparkException: read", "java.io.FileNotFoundException: /lake/t/data/1.parquet"),
        ("org.apache.spark.SparkException: write", "org.postgresql.util.PSQLException: ERROR: invalid byte sequence"),
        ("org.apache.spark.SparkException: write", f"{INVARIANT}: [DELTA_VIOLATE_CONSTRAINT_WITH_VALUES] CHECK constraint c"),
    ],
)  # fmt: skip
def test_what_rows_or_files_of_a_table_cause_is_its_refusal(causes: tuple[str, ...]) -> None:
    refused = refuse_for_error(TABLE, _of(*causes))
    assert refused is not None
    assert refused.what == f"public.t: its changes cannot be applied: {causes[-1].removeprefix(ABORTED)}"
    assert "`twofold backfill start public.t`" in refused.repair


@pytest.mark.parametrize(
    "causes",
    [
        ("org.apache.spark.SparkException: Job 7 cancelled part of cancelled job group",),
        ("java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.",),
        ("org.apache.spark.SparkException: write", "java.io.IOException: No space left on device"),
        ("org.apache.spark.SparkRuntimeException: x", "org.apache.kafka.common.errors.TimeoutException: no broker"),
        ("java.lang.IllegalArgumentException: x", "java.net.ConnectException: Connection refused"),
        ("org.apache.iceberg.exceptions.CommitStateUnknownException: Cannot determine",),
        ("org.apache.spark.SparkException: write", "org.postgresql.util.PSQLException: FATAL: terminating connection"),
        (
            "org.apache.spark.SparkException: write",
            "org.postgresql.util.PSQLException: ВАЖНО: отключение\nSQLSTATE 57P01",
        ),
        ("org.apache.spark.SparkException: write", "org.postgresql.util.PSQLException: no primary\nSQLSTATE 08001"),
        (
            "org.apache.spark.SparkException: write",
            "org.postgresql.util.PSQLException: ERROR: deadlock\nSQLSTATE 40P01",
        ),
        ("java.lang.IllegalArgumentException: x", "java.net.NoRouteToHostException: No route to host"),
        ("java.lang.OutOfMemoryError: Java heap space",),
        ("org.example.Unknown: whatever",),
    ],
)
def test_what_may_concern_all_tables_stops_none(causes: tuple[str, ...]) -> None:
    assert refuse_for_error(TABLE, _of(*causes)) is None


class Java:
    """An exception of Java's with its cause, and its SQLSTATE if it is one of SQL."""

    def __init__(self, cause: Java | None = None, sqlstate: str | None = None) -> None:
        self._cause, self.sqlstate = cause, sqlstate

    def getCause(self) -> Java | None:
        return self._cause

    def getSQLState(self) -> str | None:
        return self.sqlstate


@pytest.mark.parametrize(
    ("origin", "last"),
    [(Java(Java(sqlstate="57P01")), "SQLSTATE 57P01"), (Java(Java()), "it failed"), (None, "it failed")],
)
def test_the_state_that_a_database_gives_is_told_in_no_language(
    origin: Java | None, last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errors, "is_instance_of", lambda _gateway, java, _name: java.sqlstate is not None)
    failed = PySparkException("it failed")
    failed._origin = origin  # type: ignore[attr-defined]
    assert describe_causes(failed).splitlines()[-1] == last


def test_a_frame_of_the_stack_is_no_cause() -> None:
    assert refuse_for_error(TABLE, _of("org.example.Unknown: whatever")) is None


class _OneTransaction:
    """A sink and a place whose one transaction has all tables, and rejects one of them."""

    last, next_number, sharding = None, 1, NO_SHARDING

    def __init__(self) -> None:
        self.published: list[Cut] = []

    def version_of(self, _: MirrorTable) -> str:
        return "now"

    def publish(self, whole: GlobalCut) -> None:
        cut = whole.members["bank"]
        if str(TABLE) in cut.versions:
            refused = TableRefused(
                "public.t: rejected", at_stake="its changes", repair="`twofold backfill start public.t`"
            )
            refused.prefix, refused.table = "bank", str(TABLE)
            raise refused
        self.published.append(cut)

    def close(self) -> None: ...


@pytest.mark.parametrize("choice", ["go-on", "stop"])
def test_a_table_that_only_the_transaction_of_all_rejects_is_left_out_of_the_next(
    monkeypatch: pytest.MonkeyPatch, choice: Literal["go-on", "stop"]
) -> None:
    said: list[str] = []
    nothing = cast("Any", None)
    sink, record = _OneTransaction(), CommitRecord(5, 3, 30, 0, 1, 2, (), (), "s")
    place = cast("Place", sink)
    settings = MirrorSettings(on_table_error=choice)
    mirror = Mirror(nothing, nothing, nothing, ("bank",), place, settings, warn=said.append)
    source = mirror._sources["bank"]
    monkeypatch.setattr(source._topic, "read_after", lambda *_: iter(()))  # no later reload
    mirror._membership = GroupMembership({"bank"}, {"bank"}, named_after_s=0, warn=said.append)
    source._sink = cast("Sink", sink)
    source._batch = Batch(record, {TABLE: 2, replace(TABLE, name="other"): 2}, set())
    source._make_cut(source._batch)
    if choice == "stop":
        with pytest.raises(TableRefused, match="rejected"):
            mirror._publish({"bank": 3})
        assert sink.published == []
    else:
        mirror._publish({"bank": 3})
        (cut,) = sink.published
        assert (dict(cut.versions), cut.stopped, cut.sequence) == ({"public.other": "now"}, ("public.t",), 3)
        assert ["public.t is stopped until it is reloaded" in line for line in said] == [True]
    mirror.close()


def test_a_full_disk_is_said_in_one_sentence() -> None:
    full = explain_full_disk(_of("org.apache.spark.SparkException: x", "java.io.IOException: No space left on device"))
    assert full is not None
    assert full.exit_status == 3
    assert "make room" in str(full)
    assert explain_full_disk(_of("java.io.IOException: Permission denied")) is None


def test_a_process_that_stood_still_is_said_in_one_sentence() -> None:
    lost = PySparkRuntimeError(errorClass="CANNOT_OPEN_SOCKET", messageParameters={"errors": "timed out"})
    said = explain_standstill(describe_causes(lost))
    assert said is not None
    assert said.exit_status == 3
    assert "start again" in str(said)
    assert explain_standstill(_of("java.io.IOException: Permission denied")) is None


@pytest.mark.parametrize(
    "rejected",
    [
        "io.delta.exceptions.ConcurrentTransactionException: [DELTA_CONCURRENT_TRANSACTION] ...",
        "org.apache.iceberg.exceptions.CommitFailedException: Cannot commit: main has changed",
        "org.apache.iceberg.exceptions.ValidationException: Found new conflicting delete files",
    ],
)
def test_a_commit_that_another_one_came_before_is_said_in_one_sentence(rejected: str) -> None:
    refused = explain_conflict(_of("org.apache.spark.SparkException: x", rejected))
    assert refused is not None
    assert refused.exit_status == 5
    assert rejected.partition(":")[0] in str(refused)
    other = "org.apache.iceberg.exceptions.ValidationException: Invalid partition spec"
    assert explain_conflict(_of("org.apache.spark.SparkException: x", other)) is None


def test_a_missing_right_is_said_with_the_command_that_gives_it() -> None:
    denied = (
        "org.apache.kafka.common.errors.TopicAuthorizationException: Not authorized to access topics: [bank.commits]"
    )
    missing = explain_missing_right(_of("org.apache.spark.SparkException: x", denied), "kafka:9092")
    assert missing is not None
    assert missing.exit_status == 3
    assert str(missing) == (
        "Kafka does not let this user read bank.commits: grant Read: kafka-acls --bootstrap-server kafka:9092 --add"
        " --allow-principal User:NAME --operation Read --topic PREFIX. --resource-pattern-type prefixed"
    )
    assert explain_missing_right(_of("java.io.IOException: Permission denied"), "kafka:9092") is None


def test_a_catalog_that_only_lets_read_is_named() -> None:
    """As Iceberg's client of Unity Catalog's open server 0.6.0."""
    offered = "java.lang.UnsupportedOperationException: Server does not support endpoint: POST /v1/{prefix}/namespaces"
    said = explain_reading_catalog(_of("org.apache.spark.SparkException: x", offered))
    assert said is not None
    assert "(POST /v1/{prefix}/namespaces)" in str(said)
    assert explain_reading_catalog(_of("java.lang.UnsupportedOperationException: views")) is None
