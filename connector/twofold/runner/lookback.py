"""Recovery's look at what was written lately: are there rows in no commit record, or commit records without their rows?

Somebody else may have ended a Kafka transaction of the connector: an administrator, another program under one of its transactional ids, a request that the network delivered late. Rows of it may be in
sight, and what was not committed is sent again by this recovery: twice, then. So the look comes before anything is sent.

A run that ended because of that (`EndedElsewhere`) is followed by a look at all that its transactions may have written. The first recovery of a process looks at what came after the last commit alone, so
that a refusal is met again by the next process. Other recoveries do not look: it is a third of a recovery's time.

Where a look begins is chosen by the time at which records were written, so a clock that jumped may hide the commit record of a row. What a look suspects is therefore compared once more, by offsets alone and
with every commit record that is kept, before anything is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass, replace

from twofold.config import Config
from twofold.errors import Refused
from twofold.runner.audit import Audit, judge, trouble_of
from twofold.runner.comparison import ComparisonScope, compare
from twofold.runner.sink_settings import kafka_settings, names_of
from twofold.sink.progress import Decoder, RecoveredState
from twofold.sink.schema_registry import Registry
from twofold.sink.visible_records import PartitionId, VisibleReader

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LookbackWindow:
    """How far back recovery looks."""

    before_s: float
    """From so long before the last progress was written."""
    to_the_end: bool
    """Wait for what is still open: after the fence that is moments."""


SINCE_LAST_COMMIT = LookbackWindow(before_s=0.1, to_the_end=False)
"""Costs little: rows of a group are written after the commit before it was answered."""


def since_oldest_open(config: Config, patience: int) -> LookbackWindow:
    """All that transactions which were open may have written: none is older than its timeout."""
    return LookbackWindow(before_s=config.kafka.transaction_timeout * patience, to_the_end=True)


def check_recent_commits(
    config: Config, registry: Registry, recovered: RecoveredState, window: LookbackWindow, published: Collection[str]
) -> None:
    """Refuse if what was written lately and the commit records disagree.

    `published`: topics of tables that can be loaded anew. One that a person has asked to load is left out, since the load repairs it; of one that nothing repairs it is only told.
    """
    assert recovered.progress is not None
    settings, names = kafka_settings(config), names_of(config)
    from_ms = recovered.progress.written_at // 1000 - int(window.before_s * 1000)
    scope = ComparisonScope(frozenset({*recovered.pins, names.messages}), from_ms=from_ms, to_the_end=window.to_the_end)
    reader, decoder = VisibleReader(settings), Decoder(registry)
    found = judge(compare(reader, decoder, names, scope), names, recovered.pins)
    if suspected := _suspected(found):
        scope = replace(scope, from_ms=None, starts=suspected)
        found = judge(compare(reader, decoder, names, scope), names, recovered.pins)
    last = found.last_sequence or recovered.progress.sequence
    started = {topic for topic, wish in recovered.wishes.items() if wish == "start"}
    damaged = [each for each in found.topics if each.damages and each.topic not in started]
    troubles = {each.topic: trouble_of(each.topic, each.damages, names, each.table, last) for each in damaged}
    if tables := [each.table for each in damaged if each.table and each.topic in published]:
        raise Refused(
            f"somebody else has ended a Kafka transaction of this connector: {'; '.join(t.what for t in troubles.values())}",
            at_stake="; ".join(dict.fromkeys(t.at_stake for t in troubles.values())),
            repair=f"twofold backfill start {' '.join(tables)}; then start again",
        )
    for trouble in troubles.values():
        _log.error("%s", trouble.refusal)


def _suspected(found: Audit) -> dict[PartitionId, int]:
    """The partitions in which rows and commit records disagree, each with the first offset that is in question."""
    starts: dict[PartitionId, int] = {}
    for topic in found.topics:
        for each in topic.damages:
            place = PartitionId(topic.topic, each.partition)
            starts[place] = min(each.damage.first, starts.get(place, each.damage.first))
    return starts
