"""Recovery's check of recent writes: are there rows in no commit record, or commit records without
their rows?

Someone else may have ended a Kafka transaction of the connector: an administrator, another program
under one of the transactional ids, or a request that the network delivered late. The rows may be
visible, and this recovery would send the uncommitted rows again. So the check comes before anything
is sent.

After a run that ended because of that (`EndedElsewhere`), the check covers everything that its
transactions may have written. The first recovery of a process checks only the writes after the last
commit, so that the next process meets a refusal again. Other recoveries do not check: the check
takes a third of a recovery's time.

The write times of records decide where a check begins, so a clock that jumped may hide a row's
commit record. Suspected partitions are therefore compared once more, by offsets alone and with
every commit record that is kept, before anything is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass, replace

from twofold.config import Config
from twofold.errors import Refused
from twofold.inspect.audit import Audit, judge, trouble_of
from twofold.inspect.comparison import CLOCK_MS, ComparisonScope, compare
from twofold.kafka.decoding import Decoder
from twofold.kafka.kafka_settings import kafka_settings, names_of
from twofold.kafka.progress import RecoveredState
from twofold.kafka.schema_registry import Registry
from twofold.kafka.topic_reader import PartitionId, TopicReader

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LookbackWindow:
    """The recent writes that recovery checks."""

    before_s: float
    """Begin this long before the last progress was written."""
    to_the_end: bool
    """Wait for open transactions; after the fence that takes moments."""


SINCE_LAST_COMMIT = LookbackWindow(before_s=CLOCK_MS / 1000, to_the_end=False)
"""Covers the writes after the last commit. Cheap: a batch's rows are written after the commit
before it was answered, by the clock of the broker that wrote them.
"""


def since_oldest_open(config: Config, patience: int) -> LookbackWindow:
    """Cover what open transactions may have written: none is older than its timeout."""
    return LookbackWindow(before_s=config.kafka.transaction_timeout * patience, to_the_end=True)


def check_recent_commits(
    config: Config, registry: Registry, recovered: RecoveredState, window: LookbackWindow, published: Collection[str]
) -> None:
    """Refuse if recently written rows and the commit records disagree.

    `published`: topics of tables that can be reloaded. A table with a pending load is left out,
    because the load repairs it. Damage that nothing repairs is only logged.
    """
    assert recovered.progress is not None
    settings, names = kafka_settings(config), names_of(config)
    from_ms = recovered.progress_at_ms - int(window.before_s * 1000)
    scope = ComparisonScope(frozenset({*recovered.pins, names.messages}), from_ms=from_ms, to_the_end=window.to_the_end)
    reader, decoder = TopicReader(settings), Decoder(registry)
    found = judge(compare(reader, decoder, names, scope), names, recovered.pins)
    if suspected := _suspected(found):
        scope = replace(scope, from_ms=None, starts=suspected)
        found = judge(compare(reader, decoder, names, scope), names, recovered.pins)
    last = found.last_sequence or recovered.progress.sequence
    to_reload = recovered.to_reload
    damaged = [each for each in found.topics if each.damages and each.topic not in to_reload]
    troubles = {each.topic: trouble_of(each.topic, each.damages, names, each.table, last) for each in damaged}
    if tables := [each.table for each in damaged if each.table and each.topic in published]:
        raise Refused(
            f"someone else has ended a Kafka transaction of this connector: {'; '.join(t.what for t in troubles.values())}",
            at_stake="; ".join(dict.fromkeys(t.at_stake for t in troubles.values())),
            repair=f"twofold backfill start {' '.join(tables)}; then restart the connector",
        )
    for trouble in troubles.values():
        _log.error("%s", trouble.refusal)


def _suspected(found: Audit) -> dict[PartitionId, int]:
    """Return the partitions where rows and commit records disagree, each from which offset."""
    starts: dict[PartitionId, int] = {}
    for topic in found.topics:
        for each in topic.damages:
            place = PartitionId(topic.topic, each.partition)
            starts[place] = min(each.damage.first, starts.get(place, each.damage.first))
    return starts
