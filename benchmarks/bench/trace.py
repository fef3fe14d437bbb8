"""Where the time goes between a COMMIT and a consumer that sees it: stamps of `bench.traced`,
joined with those of the writer and the consumer, as legs one behind the other. Pure.

All stamps are of one clock, `time.monotonic_ns`, which all processes of a machine share.
"""

from __future__ import annotations

import csv
import io
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Final, NamedTuple

Stamps = dict[str, int]
"""Nanoseconds by the name of a moment, and a Kafka transaction's numbers by their names."""
_HEAD: Final = ("what", "of", "xid", "name", "number")


@dataclass
class Trace:
    """What one run of a connector noted."""

    outcomes: dict[int, tuple[int, Stamps]] = field(default_factory=dict)
    """The xid and the stamps of each traced transaction, by the position of its commit."""
    ends: dict[int, Stamps] = field(default_factory=dict)
    """The stamps of each Kafka transaction, by the applied position that it wrote."""
    requests: dict[str, tuple[dict[str, int], dict[str, int]]] = field(default_factory=dict)
    """The requests of each main producer by name: at its first statistics, and at its last."""

    def write(self, place: Path) -> None:
        with place.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(_HEAD)
            for position, (xid, stamps) in self.outcomes.items():
                writer.writerows(("outcome", position, xid, *stamp) for stamp in stamps.items())
            for position, stamps in self.ends.items():
                writer.writerows(("end", position, "", *stamp) for stamp in stamps.items())
            for producer, (first, last) in self.requests.items():
                writer.writerows(("first", producer, "", *each) for each in first.items())
                writer.writerows(("last", producer, "", *each) for each in last.items())

    @classmethod
    def read(cls, place: Path) -> Trace:
        trace = cls()
        with place.open(newline="") as file:
            for row in csv.DictReader(file):
                of, name, number = row["of"], row["name"], int(row["number"])
                match row["what"]:
                    case "outcome":
                        trace.outcomes.setdefault(int(of), (int(row["xid"]), {}))[1][name] = number
                    case "end":
                        trace.ends.setdefault(int(of), {})[name] = number
                    case what:
                        counted = trace.requests.setdefault(of, ({}, {}))
                        counted[what == "last"][name] = number
        return trace

    def committed(self) -> list[tuple[int, Stamps]]:
        """Return the Kafka transactions with outcomes that were committed, in order."""
        return sorted((end, stamps) for end, stamps in self.ends.items() if "ended" in stamps)


class Leg(NamedTuple):
    """A part of the way. It ends at a moment, and begins where the leg before it ends."""

    name: str
    ends_at: str
    not_beyond: str | None = None
    """A moment of the way that does not wait for this one: what takes longer than that moment is
    no wait of the transaction.
    """


SENT: Final = "sent"
LEGS: Final = (
    Leg("PostgreSQL to the socket", "read"),
    Leg("decode", "decoded"),
    Leg("to the bridge", "bridge"),
    Leg("Kafka transaction before", "before_ended", not_beyond="begun"),
    Leg("its answer", "before_answered", not_beyond="decided"),
    Leg("decision to commit", "decided"),
    Leg("rows to librdkafka", "rows_given", not_beyond="begun"),
    Leg("queue of the worker", "begun"),
    Leg("question: last marker?", "asked_marker"),
    Leg("rows acknowledged", "rows_acknowledged"),
    Leg("commit record", "described"),
    Leg("flush", "flushed"),
    Leg("question: still open?", "asked_open"),
    Leg("end", "ended"),
    Leg("seen by the consumer", "seen"),
)
"""Rows are acknowledged before the commit record if its ranges are not foretold."""
TOTAL: Final = "COMMIT to visible"


class Way(NamedTuple):
    """A transaction of the load: when its outcome was sent, and when its row was seen."""

    xid: int
    sent: int
    seen: int


def moments(trace: Trace, ways: Iterable[Way]) -> Iterator[Stamps]:
    """Yield all stamps of each traced transaction of the load, its Kafka transaction's included."""
    by_xid = {way.xid: way for way in ways}
    committed = trace.committed()
    ends = [end for end, _ in committed]
    for position, (xid, stamps) in sorted(trace.outcomes.items()):
        number = bisect_right(ends, position)
        if xid not in by_xid or number == len(ends):
            continue
        before = committed[number - 1][1] if number else {}
        own = committed[number][1]
        yield {
            SENT: by_xid[xid].sent,
            **stamps,
            **{f"before_{name}": before[name] for name in ("ended", "answered") if name in before},
            **own,
            "seen": by_xid[xid].seen,
        }


def legs(stamps: Stamps) -> dict[str, int]:
    """Return how long each leg took; together they are the whole way.

    A moment that was over before its leg began takes no time. So does one that is not there, such
    as the handing over of rows that were in Kafka long before their outcome.
    """
    taken, at = {}, stamps[SENT]
    for leg in LEGS:
        until = stamps.get(leg.ends_at, at)
        if leg.not_beyond is not None:
            until = min(until, stamps[leg.not_beyond])
        until = max(at, until)
        taken[leg.name] = until - at
        at = until
    return taken


class Spread(NamedTuple):
    """Milliseconds."""

    p50: float
    p99: float
    mean: float


def spread(nanoseconds: Iterable[int]) -> Spread:
    ordered = sorted(nanoseconds)
    p50, p99 = (ordered[min(int(len(ordered) * share), len(ordered) - 1)] for share in (0.5, 0.99))
    return Spread(p50 / 1e6, p99 / 1e6, fmean(ordered) / 1e6)


@dataclass(frozen=True)
class Traced:
    """The legs of one load."""

    name: str
    rate: float
    """The rate that the writers reached, in transactions a second."""
    count: int
    traced: int
    kafka_transactions: int
    foretold: int
    """The number of Kafka transactions whose commit record travelled with its rows."""
    records: float
    """The rows of a Kafka transaction, on average."""
    partitions: float
    """The partitions of those rows, on average: beside them are those of the bookkeeping."""
    requests: Mapping[str, float]
    """The requests of the main producers for each of their Kafka transactions, by name."""
    legs: Mapping[str, Spread]


def summarize(name: str, trace: Trace, ways: Sequence[Way]) -> Traced:
    """Summarize the load that these transactions were."""
    found = list(moments(trace, ways))
    if not found:
        raise RuntimeError(f"{name}: no transaction was traced; ask for a higher --count")
    taken = [legs(each) for each in found]
    begun, over = min(way.sent for way in ways), max(way.seen for way in ways)
    during = [stamps for _, stamps in trace.committed() if begun <= stamps["ended"] <= over]
    return Traced(
        name,
        rate=(len(ways) - 1) * 1e9 / max(1, max(way.sent for way in ways) - begun),
        count=len(ways),
        traced=len(found),
        kafka_transactions=len(during),
        foretold=sum(stamps.get("foretold", 0) for stamps in during),
        records=round(fmean(stamps["records"] for stamps in during), 2),
        partitions=round(fmean(stamps["partitions"] for stamps in during), 2),
        requests=_requests_each(trace),
        legs={
            **{leg.name: spread(each[leg.name] for each in taken) for leg in LEGS},
            TOTAL: spread(sum(each.values()) for each in taken),
        },
    )


def _requests_each(trace: Trace) -> dict[str, float]:
    """Return the requests for each Kafka transaction. Each has one EndTxn."""
    sent: dict[str, int] = {}
    for first, last in trace.requests.values():
        for name, number in last.items():
            sent[name] = sent.get(name, 0) + number - first.get(name, 0)
    ends = sent.get("EndTxn", 0)
    return {name: round(number / ends, 2) for name, number in sent.items() if number} if ends else {}


def table(traced: Traced) -> str:
    """The legs for people."""
    lines = [
        f"{traced.name}: {traced.traced} of {traced.count:,} transactions, {traced.rate:,.0f} a second, ms",
        f"{'':26}{'p50':>9}{'p99':>9}{'mean':>9}",
        *(f"{leg:26}{s.p50:9.2f}{s.p99:9.2f}{s.mean:9.2f}" for leg, s in traced.legs.items()),
        f"{traced.kafka_transactions:,} Kafka transactions, {traced.foretold:,} foretold; {traced.records:g} rows in {traced.partitions:g} partitions each",
    ]
    if traced.requests:
        each = ", ".join(f"{name} {number:g}" for name, number in sorted(traced.requests.items()))
        lines.append(f"requests for each of the main producers': {each}")
    return "\n".join(lines)


def picture(loads: Sequence[Traced]) -> str:
    """The text source of a picture (`deploy/diagrams.py`): the median of each leg, by load."""
    text = io.StringIO()
    text.write("# COMMIT to visible, leg by leg: medians in microseconds\n")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["leg", *(load.name for load in loads)])
    for leg in loads[0].legs:
        writer.writerow([leg, *(round(load.legs[leg].p50 * 1000) for load in loads)])
    return text.getvalue()
