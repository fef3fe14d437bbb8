"""Remembers how far connector and mirror were behind, over the last day, in bounded memory: a
sample every few seconds for an hour, one a minute for a day.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

INTERVAL_S = 5.0
HOUR_S, DAY_S, MINUTE_S = 3600.0, 86400.0, 60.0
MOMENTS_MAX = 1440


@dataclass(frozen=True, slots=True)
class Sample:
    """One point of the plots."""

    at: float
    rows_s: float
    transactions_s: float
    latency_s: float
    """The worst commit of the interval: from the source's commit to Kafka's."""
    behind_bytes: int | None
    behind_s: float | None


class History:
    """One thread adds; any may read."""

    def __init__(self) -> None:
        self.samples: deque[Sample] = deque(maxlen=int(HOUR_S / INTERVAL_S))
        self.minutes: deque[Sample] = deque(maxlen=int(DAY_S / MINUTE_S))
        """Each ends with the sample that came first in the next minute."""
        self._minute: list[Sample] = []

    def add(self, sample: Sample) -> None:
        """The newest one."""
        if self._minute and sample.at // MINUTE_S != self._minute[0].at // MINUTE_S:
            self.minutes.append(summarize(self._minute, sample.at))
            self._minute.clear()
        self._minute.append(sample)
        self.samples.append(sample)


def summarize(samples: list[Sample], at: float) -> Sample:
    """One sample of several: of rates the mean, of what is too much the most."""
    return Sample(
        at,
        sum(each.rows_s for each in samples) / len(samples),
        sum(each.transactions_s for each in samples) / len(samples),
        max(each.latency_s for each in samples),
        max((each.behind_bytes for each in samples if each.behind_bytes is not None), default=None),
        max((each.behind_s for each in samples if each.behind_s is not None), default=None),
    )


class Moment(NamedTuple):
    """When a number was seen first. `extra` came with it."""

    at: float
    number: int
    extra: int = 0


class Moments:
    """When a number that grows, such as a position, had come how far. One thread adds; any may
    read.

    Where there are too many, every second one of the older half goes: the oldest stays, so that an
    outage of any length is seen in its length.
    """

    def __init__(self) -> None:
        self._moments: list[Moment] = []

    def add(self, at: float, number: int, extra: int = 0) -> None:
        """Note it if it has grown. If it has shrunk it is of another server, and what was known
        counts no more.
        """
        newest = self._moments[-1].number if self._moments else -1
        if number == newest:
            return
        moments = self._moments.copy() if number > newest else []
        if len(moments) >= MOMENTS_MAX:
            half = len(moments) // 2
            moments = moments[:half:2] + moments[half:]
        self._moments = [*moments, Moment(at, number, extra)]

    def first_beyond(self, number: int) -> Moment | None:
        """The first moment at which there was more than that."""
        moments = self._moments
        at = bisect_right(moments, number, key=lambda each: each.number)
        return moments[at] if at < len(moments) else None

    def last_up_to(self, number: int) -> Moment | None:
        """The last moment at which there was not more than that."""
        moments = self._moments
        at = bisect_right(moments, number, key=lambda each: each.number)
        return moments[at - 1] if at else None

    def drop_before(self, number: int) -> None:
        """Forget what nobody will ask for: all but the last moment up to that number."""
        moments = self._moments
        self._moments = moments[max(0, bisect_right(moments, number, key=lambda each: each.number) - 1) :]
