"""Where a Kafka transaction's rows will lie, as far as the ones before it tell."""

from __future__ import annotations

import itertools

import pytest

from twofold.errors import RunEnded
from twofold.kafka.forecast import BYTES_MAX, PAUSE_FIRST, RECORDS_MAX, Forecast, KeptBatch
from twofold.kafka.row_batch import RowBatch
from twofold_avro.records import Range


def ended(forecast: Forecast, *ranges: Range) -> None:
    forecast.wrote(ranges)
    forecast.ended((r.topic, r.partition, r.count) for r in ranges)


def test_a_partition_that_is_not_known_is_not_foretold() -> None:
    forecast = Forecast()
    assert forecast.foretell([("t", 0, 3)]) is None
    ended(forecast, Range("t", 0, 0, 2, 3))
    assert forecast.foretell([("t", 0, 3)]) == (Range("t", 0, 4, 6, 3),)
    assert forecast.foretell([("t", 0, 1), ("t", 1, 1)]) is None


def test_each_end_of_a_transaction_that_wrote_there_leaves_a_marker() -> None:
    forecast = Forecast()
    ended(forecast, Range("t", 0, 0, 2, 3), Range("t", 1, 0, 0, 1))
    forecast.wrote([Range("t", 0, 4, 5, 2)])  # a prepared one, which is open
    assert forecast.foretell([("t", 0, 1)]) == (Range("t", 0, 6, 6, 1),)
    ended(forecast, Range("t", 0, 6, 6, 1))
    forecast.ended([("t", 0, 2)])
    assert forecast.foretell([("t", 0, 1), ("t", 1, 2)]) == (Range("t", 0, 9, 9, 1), Range("t", 1, 2, 3, 2))


def test_a_marker_that_is_late_comes_behind_the_rows_that_were_written_meanwhile() -> None:
    forecast = Forecast()
    ended(forecast, Range("t", 0, 0, 2, 3), Range("t", 1, 0, 0, 1), Range("t", 2, 0, 0, 1))
    forecast.wrote([Range("t", 0, 3, 4, 2), Range("t", 1, 1, 3, 2), Range("t", 2, 7, 7, 1)])
    foretold = forecast.foretell([("t", partition, 1) for partition in range(3)])
    assert foretold is not None
    assert [each.first for each in foretold] == [6, 4, 8], "behind, amid, and another writer before them"


def test_a_partition_that_starts_over_ends_the_run() -> None:
    """Its topic was deleted and made again, also where a miss lies between."""
    forecast = Forecast()
    forecast.wrote([Range("t", 0, 7, 9, 3), Range("t", 1, 7, 9, 3)])
    forecast.missed()
    forecast.wrote([Range("t", 0, 11, 11, 1)])
    with pytest.raises(RunEnded, match="records of t-1 at 0, and earlier ones at 9: the topic was deleted"):
        forecast.wrote([Range("t", 1, 0, 0, 1)])


def test_the_last_end_is_the_one_to_ask_about() -> None:
    forecast = Forecast()
    ended(forecast, Range("t", 0, 0, 2, 3), Range("t", 1, 0, 0, 1))
    ended(forecast, Range("t", 1, 2, 2, 1))
    foretold = forecast.foretell([("t", 0, 1), ("t", 1, 1)])
    assert foretold is not None
    assert forecast.ended_last(foretold) == Range("t", 1, 4, 4, 1)


def test_the_commit_records_tell_of_the_ends_that_have_one() -> None:
    forecast, rows = Forecast(), Range("t", 0, 0, 2, 3)
    assert forecast.end_behind(rows, "commits") is None
    ended(forecast, rows, Range("commits", 0, 7, 7, 1))
    assert forecast.end_behind(rows, "commits") == 9
    ended(forecast, Range("t", 1, 0, 0, 1))  # not in that partition
    assert forecast.end_behind(rows, "commits") == 9
    ended(forecast, Range("t", 0, 4, 6, 3))  # an abort
    assert forecast.end_behind(rows, "commits") is None
    ended(forecast, Range("t", 0, 8, 10, 3), Range("commits", 0, 9, 9, 1))
    forecast.missed()
    assert forecast.end_behind(rows, "commits") is None


def test_after_a_miss_nothing_is_foretold_for_a_while_and_longer_after_the_next() -> None:
    forecast, offsets = Forecast(), itertools.count(step=4)

    def pause() -> int:
        forecast.missed()
        first = next(offsets)
        ended(forecast, Range("t", 0, first, first + 2, 3))
        return next(n for n in range(10_000) if forecast.foretell([("t", 0, 1)]))

    assert (pause(), pause(), pause()) == (PAUSE_FIRST, 4 * PAUSE_FIRST, 16 * PAUSE_FIRST)
    for _ in range(2_000):
        forecast.was_right()
    assert pause() == PAUSE_FIRST


def batch_of(records: int, size: int) -> RowBatch:
    batch = RowBatch()
    batch.lists("t", 1)[0].extend({"key": b"", "value": b""} for _ in range(records))
    batch.bytes = size
    return batch


def test_the_rows_of_a_small_batch_are_kept_until_the_next_one_begins() -> None:
    kept = KeptBatch()
    first, second = batch_of(400, 9), batch_of(600, 9)
    kept.keep(first)
    kept.keep(second)
    assert (kept.is_whole, kept.take_batches()) == (True, [first, second])
    assert (kept.is_whole, kept.take_batches()) == (True, [])
    for large in (batch_of(RECORDS_MAX + 1, 0), batch_of(1, BYTES_MAX + 1)):
        kept.keep(first)
        kept.keep(large)
        kept.keep(second)
        assert (kept.is_whole, kept.take_batches()) == (False, [])
