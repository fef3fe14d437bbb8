"""Records that cannot be decoded, in every sink: kept once, and then the user's choice."""

from __future__ import annotations

from typing import Any, cast

import psycopg
import pytest
from psycopg.rows import dict_row

from fixtures.spark import KEPT_SHORT, Killed, Lake
from helpers.spark.writer import table
from twofold_spark.errors import Refused, TableRefused
from twofold_spark.sinks.interface import Sink
from twofold_spark.sinks.place import Place
from twofold_spark.sources import registry

pytestmark = pytest.mark.parametrize("kept", KEPT_SHORT, indirect=True)
REASONS = {1: "malformed Avro", 2: "not framed, or unknown schema id 2130706432"}
"""By the offsets of what `_torn` writes."""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """An id of no schema is waited for, as a replica of the registry may lag behind."""
    monkeypatch.setattr(registry, "PATIENCE_S", 0.2)


def _torn(kept: Lake, *names: str) -> None:
    """A good record of each table, and two of one key that no reader can make anything of."""
    w = kept.writer
    for name in names:
        w.table(table(name, {"id": "int8", "v": "text"}), partitions=1)
    with w.commit() as tx:
        for name in names:
            tx.upsert(name, {"id": 1, "v": "good"})
            key = w.key_bytes(name, {"id": 7})
            tx.raw(name, key, w.value_header(name) + b"\x02torn")
            tx.raw(name, key, b"\0\x7f\0\0\0of no known schema")


def _quarantined(kept: Lake) -> list[dict[str, Any]]:
    """The sink's quarantine table, by place."""
    if kept.choice.name == "jdbc":
        with psycopg.connect(kept.choice.address, row_factory=dict_row) as connection:
            rows = connection.execute("SELECT * FROM twofold.quarantine").fetchall()
    else:
        delta = f"delta.`{kept.choice.address}/twofold/quarantine`"
        name = f"{kept.catalog}.twofold.quarantine" if kept.choice.name == "iceberg" else delta
        rows = [row.asDict() for row in kept.spark.table(name).collect()]
    return sorted(rows, key=lambda row: (row["topic"], row["partition"], row["offset"]))


def _assert_each_is_there_once(kept: Lake, *names: str) -> None:
    rows = _quarantined(kept)
    topics = [kept.writer.topics[name].name for name in sorted(names)]
    assert [(row["topic"], row["partition"], row["offset"], row["reason"]) for row in rows] == [
        (topic, 0, offset, reason) for topic in topics for offset, reason in REASONS.items()
    ]
    for row, name in zip(rows[::2], sorted(names), strict=True):
        assert bytes(row["value"]).endswith(b"torn")
        assert bytes(row["key"]) == kept.writer.key_bytes(name, {"id": 7})


class _KilledBehindTheQuarantine:
    """Between the records' way into the quarantine and what the job would do next."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)

    def quarantine(self, records: Any) -> None:
        self._sink.quarantine(records)
        raise Killed


def _killed(sink: Sink, _: Place) -> Sink:
    return cast("Sink", _KilledBehindTheQuarantine(sink))


def test_they_are_there_once_and_the_job_stops_however_often_it_is_tried(kept: Lake) -> None:
    _torn(kept, "accounts")
    for _ in range(2):  # Spark gives the batch that failed again
        with pytest.raises(Refused, match=r"2 records of .* cannot be decoded"):
            kept.mirror()
    assert kept.reader.find_cut() is None
    kept.checkpoint = "another: the first is lost"
    with pytest.raises(Refused, match=r"2 records of .* cannot be decoded"):
        kept.mirror()
    _assert_each_is_there_once(kept, "accounts")


@pytest.mark.slow
def test_they_are_there_once_and_the_job_goes_on_without_them(kept: Lake) -> None:
    """Several tables' records may be the first at once."""
    names = ("accounts", "b", "c")
    _torn(kept, *names)
    kept.mirror(unreadable="skip", tables_at_once=3)
    kept.assert_equal()
    with kept.writer.commit() as tx:
        tx.upsert("accounts", {"id": 7, "v": "readable again"})
    kept.mirror(unreadable="skip")
    kept.assert_equal()
    assert [applied.cut.sequence for applied in kept.applied] == [1, 2]
    _assert_each_is_there_once(kept, *names)


def test_a_kill_behind_the_quarantine_leaves_each_there_once(kept: Lake) -> None:
    """Before the job could stop, and before it could go on."""
    _torn(kept, "accounts")
    for unreadable in ("stop", "skip"):
        with pytest.raises(Killed):
            kept.mirror(around=_killed, unreadable=unreadable)
        assert kept.reader.find_cut() is None, "nothing was published"
    with pytest.raises(TableRefused, match="the quarantine table has them"):
        kept.mirror()
    kept.mirror(unreadable="skip")
    kept.assert_equal()
    _assert_each_is_there_once(kept, "accounts")
