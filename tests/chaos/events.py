"""The checks of outbox events: each of a committed transaction once and none of any other, in the
order of commits by key, and in the commit record of its transaction's rows.

An event's value is JSON that a client has written: its transaction `tx`, its number `n` within it,
and a `version` that grows by key in the order of commits, because the client has held a row's lock.
So the order needs no word of the product. That the rows and the commit record of a range come into
sight together is shown by the checks of ranges and of the coordinators' log, which have the events'
topics too.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, Final

from chaos.journal import Entry, Op
from chaos.reading import Record
from chaos.violation import Violation, show

EVENT: Final = ".outbox.event."
"""Behind the prefix of an event's topic, and before its name."""


def is_event(record: Record) -> bool:
    return EVENT in record.topic


def event_op(name: str, number: int, topic: str, key: str, version: int, value: str, headers: Mapping[str, str]) -> Op:
    """What a journal has of an event."""
    place = {"tx": name, "n": number, "version": version, "topic": topic, "key": key}
    return "outbox", "e", place, {"value": value, "headers": dict(headers)}


def check_events(
    events: Sequence[Record],
    entries: Mapping[str, Entry],
    committed: Set[str],
    home: Mapping[tuple[str, int, int], int],
    shown: Mapping[str, Set[int]],
) -> Iterator[Violation]:
    """All that is wrong with the events, which are in the order of place.

    `home` has the commit record of each place, `shown` the commit records in which a transaction's
    rows are.
    """
    by_transaction: dict[str, dict[int, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in events:
        said = json.loads(record.value)
        by_transaction[said["tx"]][said["n"]].append(record)
    for name in committed & entries.keys():
        yield from _exactly_once(name, entries[name].events, by_transaction[name])
    for name, numbers in by_transaction.items():
        records = [record for each in numbers.values() for record in each]
        if name not in committed and records:
            yield Violation("event rolled back", f"events of {name}, which was never committed, are visible", show(records))  # fmt: skip
        if apart := [record for record in records if home.get(record.place) not in shown.get(name, ())]:
            rows = sorted(shown.get(name, ()))
            yield Violation("event torn", f"the rows of {name} are in the commit records {rows}, and events of it are not", show(apart))  # fmt: skip
    yield from _in_order(events)


def _exactly_once(name: str, ops: Iterable[Op], found: Mapping[int, Sequence[Record]]) -> Iterator[Violation]:
    wanted = {op[2]["n"]: op for op in ops if op[2] is not None}
    for number, op in wanted.items():
        records = found.get(number, ())
        if not records:
            yield Violation("event lost", f"transaction {name} is committed, and its event is not there: {op}")
        elif len(records) > 1:
            yield Violation("event doubled", f"an event of transaction {name} is there {len(records)} times", show(records))  # fmt: skip
        elif not _fits(records[0], op):
            yield Violation("event differs", f"transaction {name} said {op}, and the headers are {records[0].headers}", show(records))  # fmt: skip
    if more := [record for number in found.keys() - wanted.keys() for record in found[number]]:
        yield Violation("event rolled back", f"events of {name} are visible that it has taken back", show(more))


def _fits(record: Record, op: Op) -> bool:
    _, _, place, said = op
    assert place is not None
    assert said is not None
    headers = tuple((name, value.encode()) for name, value in said["headers"].items())
    topic = record.topic.partition(EVENT)[2]
    return (topic, record.key, record.value, record.headers) == (place["topic"], place["key"], said["value"], headers)


def _in_order(events: Iterable[Record]) -> Iterator[Violation]:
    """Of each key in one partition, and with versions that grow."""
    last: dict[tuple[str, Any], Record] = {}
    for record in events:
        key = record.topic, record.key
        before = last.get(key)
        if before is not None and before.partition != record.partition:
            yield Violation("event order", f"the key {record.key} lies in two partitions", show([before, record]))
        elif before is not None and _version(record) <= _version(before):
            yield Violation("event order", f"the key {record.key} has an older event behind a newer one", show([before, record]))  # fmt: skip
        last[key] = record


def _version(record: Record) -> int:
    return int(json.loads(record.value)["version"])
