"""The recorded topics of docs/reference/transactions.json give the transactions that it lists, in
whatever portions and order Kafka brings the partitions.
"""

from __future__ import annotations

import base64
import copy
import json
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from twofold_avro.records import Commit, Range
from twofold_common.errors import Refused, UsageError
from twofold_reader.changes import ChangeDecoder
from twofold_reader.partition_rows import PartitionRows
from twofold_reader.whole_transactions import WHOLE, Bookmark, CommitSequence, Transaction, assemble

ROOT = Path(__file__).parents[3]
VECTOR: dict[str, Any] = json.loads((ROOT / "docs/reference/transactions.json").read_text())
COMMITS = f"{VECTOR['prefix']}.commits"


class Record:
    """A record as confluent_kafka has it."""

    def __init__(self, topic: str, partition: int, offset: int, key: str | None, value: str | None) -> None:
        self._place, self._offset = (topic, partition), offset
        self._key, self._value = (None if each is None else base64.b64decode(each) for each in (key, value))

    def __len__(self) -> int:
        return len(self._value or b"")

    def at(self, offset: int) -> Record:
        """The same at another offset."""
        found = copy.copy(self)
        found._offset = offset
        return found

    def topic(self) -> str:
        return self._place[0]

    def partition(self) -> int:
        return self._place[1]

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value


class RecordedTopics:
    """The vector's topics, which come in random portions of random partitions."""

    def __init__(self, seed: int, *, forgets_early: bool = False) -> None:
        self._random = random.Random(seed)
        self._forgets_early = forgets_early
        self.records = {
            (topic, int(partition)): [Record(topic, int(partition), *each) for each in records]
            for topic, partitions in VECTOR["topics"].items()
            for partition, records in partitions.items()
        }
        self._rows: dict[tuple[str, int], PartitionRows[Record]] = {}
        self.read_again = 0

    def commits(self) -> Iterator[tuple[int, Commit]]:
        for record in self.records[COMMITS, 0]:
            yield record.offset(), Commit.from_bytes(record.value() or b"")

    def read_range(self, wanted: Range) -> Iterator[Sequence[Record]]:
        rows = self._rows.setdefault((wanted.topic, wanted.partition), PartitionRows(wanted.first))
        return rows.take_range(wanted, self._read_more, self._read_again)

    def _read_more(self) -> None:
        place = self._random.choice(list(self._rows))
        rows, records = self._rows[place], self.records[place]
        new = [each for each in records if each.offset() >= rows.position][: self._random.randint(0, 4)]
        end = 1 + max(each.offset() for each in records)
        rows.add(new, new[-1].offset() + 1 if new else end if rows.position > records[-1].offset() else rows.position)
        if self._forgets_early:
            rows.drop_early()

    def _read_again(self, wanted: Range) -> Iterator[Sequence[Record]]:
        self.read_again += 1
        records = self.records[wanted.topic, wanted.partition]
        yield [each for each in records if wanted.first <= each.offset() <= wanted.last]


def read(topics: RecordedTopics, after: Bookmark | None = None) -> Iterator[Transaction]:
    """Put the transactions together as a reader does."""
    decoder, sequence = (
        ChangeDecoder(lambda schema_id: json.dumps(VECTOR["schemas"][str(schema_id)])),
        CommitSequence("bank"),
    )
    for offset, commit in topics.commits():
        if after and offset < after.offset:
            continue
        sequence.check(commit)
        done = after.done if after and offset == after.offset else 0
        if done == WHOLE:
            continue
        outcomes = {each.id: each.commit_lsn for each in commit.prepared}
        seen: set[str] = set()
        rows = []
        for index, each in enumerate(commit.ranges):
            rows.append(
                decoder.read_rows(topics.read_range(each), index, outcomes, with_truncates=each.topic not in seen)
            )
            seen.add(each.topic)
        yield from assemble(commit, offset, rows, seen, done)


def plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


def as_json(transaction: Transaction) -> dict[str, Any]:
    changes = [
        {
            "table": each.table,
            "op": each.op,
            "key": each.key,
            "before": each.before and {name: plain(value) for name, value in each.before.items()},
            "after": each.after and {name: plain(value) for name, value in each.after.items()},
            "unchanged": each.unchanged,
            "special": each.special,
            "number": each.number,
        }
        for each in transaction.changes
    ]
    return {
        "kind": transaction.kind,
        "id": transaction.id,
        "position": transaction.position,
        "sequence": transaction.sequence,
        "gid": transaction.gid,
        "global_id": transaction.global_id,
        "loading": list(transaction.loading),
        "stale": list(transaction.stale),
        "skipped": list(transaction.skipped),
        "changes": changes,
    }


@pytest.mark.parametrize("seed", range(20))
def test_the_topics_give_the_transactions(seed: int) -> None:
    topics = RecordedTopics(seed)
    assert [as_json(each) for each in read(topics)] == VECTOR["transactions"]
    assert topics.read_again == 0


@pytest.mark.parametrize("seed", range(20))
def test_early_rows_that_were_dropped_are_read_again(seed: int) -> None:
    topics = RecordedTopics(seed, forgets_early=True)
    assert [as_json(each) for each in read(topics)] == VECTOR["transactions"]


def test_early_rows_are_dropped_in_some_of_these() -> None:
    """Otherwise the test above shows nothing."""
    topics = [RecordedTopics(seed, forgets_early=True) for seed in range(20)]
    for each in topics:
        for transaction in read(each):
            list(transaction.changes)
    assert any(each.read_again for each in topics)


@pytest.mark.parametrize("at", range(len(VECTOR["transactions"])))
def test_a_bookmark_continues_behind_its_transaction(at: int) -> None:
    transaction = list(read(RecordedTopics(at)))[at]
    mark = Bookmark.parse(transaction.bookmark)
    assert [as_json(each) for each in read(RecordedTopics(at), mark)] == VECTOR["transactions"][at + 1 :]


def test_the_bookmark_behind_the_last_transaction_of_a_commit_record_needs_nothing_of_it() -> None:
    """Retention may delete the commit record before the next one comes."""
    transactions = list(read(RecordedTopics(1)))
    found = [(each.sequence, Bookmark.parse(each.bookmark).done == WHOLE) for each in transactions]
    assert len(found) > len({sequence for sequence, _ in found})
    following = [sequence for sequence, _ in found[1:]]
    assert [is_whole for _, is_whole in found] == [
        sequence != after for (sequence, _), after in zip(found, [*following, None], strict=True)
    ]


def test_an_envelope_of_another_version_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """fastavro decodes it whole, because the layout behind its rows is not the known one."""
    monkeypatch.setattr("twofold_reader.changes._KNOWN", None)
    monkeypatch.setattr("twofold_avro.wire.read_origin", None)
    assert [as_json(each) for each in read(RecordedTopics(1))] == VECTOR["transactions"]


def test_no_row_waits_behind_the_end() -> None:
    topics = RecordedTopics(3)
    assert len([as_json(each) for each in read(topics)]) == len(VECTOR["transactions"])
    assert {rows.size for rows in topics._rows.values()} == {0}
    assert {rows.early_size for rows in topics._rows.values()} == {0}


def test_changes_that_nobody_reads_are_passed_over() -> None:
    assert [each.id for each in read(RecordedTopics(1))] == [each["id"] for each in VECTOR["transactions"]]


@pytest.mark.parametrize("count", [0, 1])
def test_changes_that_are_read_too_late_are_refused(count: int) -> None:
    """They were one row, and the others were missing without a word."""
    for at, expected in enumerate(VECTOR["transactions"]):
        if expected["kind"] != "transaction":
            continue
        transactions = read(RecordedTopics(1))
        late = [next(transactions) for _ in range(at + 1)][-1]
        begun = [next(late.changes) for _ in range(count)]
        list(transactions)
        if len(begun) < len(expected["changes"]):
            with pytest.raises(UsageError, match="the changes of a transaction are read after the next"):
                list(late.changes)


def test_changes_of_the_last_transaction_of_all_are_read_too_late() -> None:
    late = list(read(RecordedTopics(1)))
    with pytest.raises(UsageError, match="keep them in a list"):
        list(late[-1].changes)


@pytest.mark.parametrize("partition", [0, 1])
def test_a_missing_row_is_refused(partition: int) -> None:
    topics = RecordedTopics(1)
    del topics.records["bank.public.account", partition][5]
    with pytest.raises(Refused, match=r"bank.public.account \[\d\] has \d records .* says \d"):
        [as_json(each) for each in read(topics)]


class WithAnotherRow(RecordedTopics):
    """Each offset is twice what it was, and at one between is a row that no commit record names."""

    def __init__(self, seed: int, place: tuple[str, int], offset: int) -> None:
        super().__init__(seed)
        for each, records in self.records.items():
            if each[0] != COMMITS:
                self.records[each] = [record.at(2 * record.offset()) for record in records]
        rows = self.records[place]
        rows.insert(sum(record.offset() < offset for record in rows), rows[0].at(offset))

    def read_range(self, wanted: Range) -> Iterator[Sequence[Record]]:
        return super().read_range(replace(wanted, first=2 * wanted.first, last=2 * wanted.last))


def test_a_row_that_no_commit_record_names_is_refused_or_left_out() -> None:
    """A broker's fault may show rows of an aborted transaction."""
    ranges = [each for _, commit in RecordedTopics(0).commits() for each in commit.ranges]
    count = {True: 0, False: 0}
    for place in {(each.topic, each.partition) for each in ranges}:
        own = [each for each in ranges if (each.topic, each.partition) == place]
        for offset in range(1, 2 * max(each.last for each in own), 2):
            is_within = any(2 * each.first < offset < 2 * each.last for each in own)
            count[is_within] += 1
            topics = WithAnotherRow(offset, place, offset)
            if not is_within:
                assert [as_json(each) for each in read(topics)] == VECTOR["transactions"]
                continue
            with pytest.raises(Refused, match=r"has \d+ records .* says \d"):
                [as_json(each) for each in read(topics)]
    assert min(count.values()) > 10, count


def test_a_missing_commit_record_is_refused() -> None:
    topics = RecordedTopics(1)
    del topics.records[COMMITS, 0][3]
    with pytest.raises(Refused, match="commit record 5 behind 3"):
        list(read(topics))


def test_commit_records_of_another_stream_are_refused() -> None:
    sequence = CommitSequence("bank")
    sequence.check(Commit(1, "batch", 0, 0, 0, 0, stream_id="one"))
    with pytest.raises(Refused, match="recreated"):
        sequence.check(Commit(2, "batch", 0, 0, 0, 0, stream_id="other"))


def test_a_bookmark_of_another_stream_is_refused() -> None:
    mark = Bookmark("one", 3, 17, 5)
    mark.check(Commit(3, "batch", 0, 0, 0, 0, stream_id="one"), "bank")
    for commit in (Commit(3, "batch", 0, 0, 0, 0, stream_id="other"), Commit(4, "batch", 0, 0, 0, 0, stream_id="one")):
        with pytest.raises(Refused, match="recreated"):
            mark.check(commit, "bank")


def test_the_vector_is_what_its_command_makes() -> None:
    made = subprocess.run(
        [sys.executable, ROOT / "deploy/transaction_vector.py"], capture_output=True, text=True, check=True
    )
    assert made.stdout == (ROOT / "docs/reference/transactions.json").read_text(), "make vector"
