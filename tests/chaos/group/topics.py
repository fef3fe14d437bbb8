"""What readers of each source alone would see: when each branch of a transfer became visible, by
the commit records of its own source, and at how many of these records a transfer was visible in
part.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from chaos.reading import Record, avro, read_all

NEVER: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Spans:
    """From the first visible branch of a transfer to the moment when all were."""

    torn: tuple[tuple[int, int], ...]
    """In milliseconds; the end is not in it."""
    moments: tuple[int, ...] = ()
    """Of all sources' commit records: a mirror of one source moves with each of its own."""
    unrecorded: tuple[str, ...] = ()
    """Rows that are visible, and that no commit record has."""

    @classmethod
    def read(cls, bootstrap: str, registry: str, prefixes: Iterable[str]) -> Spans:
        decode = avro(registry)
        moments: list[int] = []
        unrecorded: list[str] = []
        seen: dict[str, dict[int, int]] = defaultdict(dict)
        branches: dict[str, int] = {}
        for prefix in prefixes:
            topic = f"{prefix}.public.part"
            # The rows first: connectors still run, and what comes between the two has its record.
            rows = read_all(bootstrap, decode, [topic])
            commits = read_all(bootstrap, decode, [f"{prefix}.commits"])
            moments += [commit.written_ms for commit in commits]
            for row, at in visible_since(topic, rows, commits):
                if at is None:
                    unrecorded.append(f"{row.place} of {len(rows)} rows and {len(commits)} commit records: {row.value}")
                    continue
                if (after := row.value["after"]) is None:
                    continue  # the truncate of a load, which brings the same rows again
                seen[after["transfer"]].setdefault(after["branch"], at)
                branches[after["transfer"]] = after["branches"]
        found = cls.of({name: [*its.values()] for name, its in seen.items()}, branches, moments)
        return replace(found, unrecorded=tuple(unrecorded))

    @classmethod
    def of(cls, seen: dict[str, list[int]], branches: dict[str, int], moments: Iterable[int] = ()) -> Spans:
        """Of one whose branches were not all seen, the span has no end."""
        ends = {name: max(at) if len(at) == branches[name] else NEVER for name, at in seen.items()}
        torn = sorted((min(at), ends[name]) for name, at in seen.items() if min(at) < ends[name])
        return cls(tuple(torn), tuple(moments))

    def torn_moments(self) -> list[int]:
        """The moments at which some transfer was visible in part."""
        return [moment for moment in self.moments if any(first <= moment < end for first, end in self.torn)]


def visible_since(topic: str, rows: Iterable[Record], commits: Iterable[Record]) -> Iterable[tuple[Record, int | None]]:
    """Each row with the time of the commit record whose range has it; None if no range has.

    A prepared transaction's rows may have lower offsets than those of earlier commit records.
    """
    ranges: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for commit in commits:
        for each in commit.value["ranges"]:
            if each["topic"] == topic:
                ranges[each["partition"]].append((each["last"], each["first"], commit.written_ms))
    for here in ranges.values():
        here.sort()
    for row in rows:
        if row.value is not None:
            here = ranges[row.partition]
            place = bisect_left(here, (row.offset,))
            is_inside = place < len(here) and here[place][1] <= row.offset
            yield row, here[place][2] if is_inside else None
