"""What the next recovery does differently, by the errors of earlier runs in this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from twofold.config import Config
from twofold.errors import EndedElsewhere, TransactionTimedOut, TwofoldError, UncertainEnd
from twofold.kafka.late_ends import EndPatience
from twofold.run.lookback import SINCE_LAST_COMMIT, LookbackWindow, since_oldest_open
from twofold.run.run import RefusedBehind
from twofold.stream.streamed import StreamUnclear
from twofold.tables.topic_mismatch import TopicRestart
from twofold_avro.records import Pin
from twofold_common.positions import Lsn

OFTEN, OFTEN_WITHIN_S = 5, 600.0
"""The limit of a topic's restarts for one table, each this soon after the one before."""
PATIENCE_MAX = 1024
"""The greatest factor. The brokers' own limit comes first."""


class TopicsToRestart:
    """The topics that the next run restarts, and the runs after it until Kafka has the restart.

    The next run may end before that, because another table's topic must restart too. A later run
    without the first topic would meet that topic's rows again, and the two topics would alternate.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._times: dict[tuple[str, int], list[float]] = {}
        self._topics: dict[str, tuple[Pin | None, ...]] = {}
        """The topics with their pins before the restart; (): no run has begun with the topic."""

    def add(self, met: TopicRestart) -> None:
        """Add a topic; refuse it if the same table causes this again and again.

        Stream and catalog then disagree on the table's key, or someone changes it all the time.
        """
        now = self._clock()
        recent = {which: times for which, times in self._times.items() if now - times[-1] < OFTEN_WITHIN_S}
        recent.setdefault((met.topic, met.oid), []).append(now)
        self._times = recent
        if len(recent[met.topic, met.oid]) > OFTEN and met.refusal is not None:
            raise met.refusal
        self._topics[met.topic] = ()

    def choose(self, pins: Mapping[str, Pin]) -> Collection[str]:
        """Return the topics that Kafka's pins do not show as restarted yet."""
        self._topics = {
            topic: (pins.get(topic),) for topic, before in self._topics.items() if before in {(), (pins.get(topic),)}
        }
        return self._topics.keys()


@dataclass(frozen=True, slots=True)
class NextRun:
    """The changes to the next recovery that errors of earlier runs in this process cause."""

    config: Config
    patience: int = 1
    """How many times as long as configured a Kafka transaction may take."""
    ends: EndPatience = field(default_factory=EndPatience)
    refused: RefusedBehind | None = None
    """The refusal to raise when everything before it is published."""
    lookback: LookbackWindow | None = SINCE_LAST_COMMIT
    """The recent writes to compare with the commit records before anything is sent."""
    restart: TopicsToRestart = field(default_factory=TopicsToRestart)

    @property
    def upto(self) -> Lsn | None:
        """The commit before which the run ends."""
        return self.refused.at if self.refused else None

    def after(self, error: TwofoldError, *, recovered: bool) -> NextRun:  # noqa: PLR0911  (one flat dispatch)
        """Learn from an error.

        `recovered`: the run's recovery had finished, so its check was done.
        """
        known = replace(self, lookback=None) if recovered else self
        match error:
            case UncertainEnd():
                return replace(known, ends=self.ends.after(error))
            case TransactionTimedOut():
                return replace(known, patience=min(self.patience * 4, PATIENCE_MAX))
            case RefusedBehind():
                return replace(known, refused=error)
            case TopicRestart():
                self.restart.add(error)
                return replace(known, refused=None)
            case StreamUnclear():
                source = self.config.source.model_copy(update={"streaming": "off"})
                return replace(known, config=self.config.model_copy(update={"source": source}))
            case EndedElsewhere():
                return replace(known, lookback=since_oldest_open(self.config, self.patience))
        return known
