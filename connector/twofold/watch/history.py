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
    """Samples of the last hour and minutes of the last day. One thread adds; any may read."""

    def __init__(self) -> None:
        self.samples: deque[Sample] = deque(maxlen=int(HOUR_S / INTERVAL_S))
        self.minutes: deque[Sample] = deque(maxlen=int(DAY_S / MINUTE_S))
        """Each minute ends at the first sample of the next minute."""
        self._minute: list[Sample] = []

    def add(self, sample: Sample) -> None:
        """Add the newest sample."""
        if self._minute and sample.at // MINUTE_S != self._minute[0].at // MINUTE_S:
            self.minutes.append(summarize(self._minute, sample.at))
            self._minute.clear()
        self._minute.append(sample)
        self.samples.append(sample)


def summarize(samples: list[Sample], at: float) -> Sample:
    """Return one sample for several: the mean of rates, the maximum of latency and lag."""
    return Sample(
        at,
        sum(each.rows_s for each in samples) / len(samples),
        sum(each.transactions_s for each in samples) / len(samples),
        max(each.latency_s for each in samples),
        max((each.behind_bytes for each in samples if each.behind_bytes is not None), default=None),
        max((each.behind_s for each in samples if each.behind_s is not None), default=None),
    )


class Moment(NamedTuple):
    """The time when a number was seen first, and a second number that was seen with it."""

    at: float
    number: int
    extra: int = 0


class Moments:
    """The times at which a growing number, such as a position, reached its values. One thread adds;
    any may read.

    When there are too many moments, every second one of the older half is dropped. The oldest
    moment stays, so that an outage of any length is shown in its full length.
    """

    def __init__(self) -> None:
        self._moments: list[Moment] = []

    def add(self, at: float, number: int, extra: int = 0) -> None:
        """Add a moment if the number has grown. A number that has shrunk is of another server: the
        earlier moments are dropped.
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
        """Return the first moment at which the number was greater."""
        moments = self._moments
        at = bisect_right(moments, number, key=lambda each: each.number)
        return moments[at] if at < len(moments) else None

    def last_up_to(self, number: int) -> Moment | None:
        """Return the last moment at which the number was not greater."""
        moments = self._moments
        at = bisect_right(moments, number, key=lambda each: each.number)
        return moments[at - 1] if at else None

    def drop_before(self, number: int) -> None:
        """Drop all moments up to this number except the last: nobody asks for earlier moments."""
        moments = self._moments
        self._moments = moments[max(0, bisect_right(moments, number, key=lambda each: each.number) - 1) :]
