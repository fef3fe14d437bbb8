"""Recovery's steps 2 and 3: fence, take over, read. Nothing else writes before they are complete.

`init_transactions` runs for every id that the connector may have used, the first main id first.
Every older holder's calls then fail, and its open transactions are aborted. Parts that Kafka has
forgotten to end are aborted (`lost_ends`): in the bookkeeping before the first commit, in the
topics of rows at the end. A takeover record follows, committed through the first main id: of two
instances that fence at once, the loser learns there that it lost. Only then is the progress read.
Before the fence, that could be the progress before a predecessor's last commit.

The takeover's own end may be uncertain, as any other end. The takeover is then committed, and its
id is initialised once more. The progress that is read afterwards shows whether a rival took over in
between. If the progress names a larger pool than ours, the ids beyond are fenced too, and takeover
and reading are repeated.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable
from dataclasses import dataclass

from twofold import failpoints
from twofold.errors import Fenced, UncertainEnd
from twofold.kafka.client import KafkaSettings
from twofold.kafka.lost_ends import LostEnds
from twofold.kafka.names import Names
from twofold.kafka.open_check import OpenCheck
from twofold.kafka.producer import TransactionalProducer
from twofold.kafka.progress import ProgressReader, RecoveredState
from twofold.kafka.publisher import Publisher, close_quietly
from twofold.kafka.schema_registry import Registry, SchemaIds
from twofold.kafka.topic_reader import TopicReader
from twofold.kafka.watch import Watch
from twofold_common.positions import Lsn

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Fencing:
    """The result of fencing: the recovered state, and the producers for this run."""

    recovered: RecoveredState
    publisher: Publisher


def fence(
    settings: KafkaSettings,
    names: Names,
    registry: Registry,
    ids: SchemaIds,
    *,
    pool: int,
    watch: Watch,
    confirmed: Lsn | None = None,
) -> Fencing:
    """Fence all predecessors and read their state. The bookkeeping topics must exist. After an
    error nothing stays open.

    `confirmed`: PostgreSQL was told that Kafka has everything up to this position; None: that is
    not known.
    """

    def make(transactional_id: str) -> TransactionalProducer:
        # The rows of a pool's producer are on their way before anybody flushes them.
        gathers = transactional_id in names.main_ids
        return TransactionalProducer(transactional_id, settings, watch, gathers=gathers)

    producers: list[TransactionalProducer] = []
    ids_in_use = pool
    reader = TopicReader(settings)
    left = ProgressReader(reader, names, registry)
    lost_ends = LostEnds(reader, names, registry, confirmed, settings.call_timeout_s)
    try:
        first, second = names.main_ids
        producers.append(make(first))
        producers[0].connect(names.progress)
        producers[0].init()
        failpoints.hit("fence_main")
        while True:
            wanted = [first, second, *map(names.prepared_id, range(ids_in_use))]
            _fence_ids(producers, map(make, wanted[len(producers) :]))
            lost_ends.abort_forgotten_in_bookkeeping(producers)
            token = uuid.uuid4().hex
            try:
                _take_over(producers[0], names, token)
            except UncertainEnd as uncertain:
                _log.warning("%s", uncertain)
                producers[0] = make(first)
                producers[0].init()
            failpoints.hit("after_takeover")
            recovered = left.read()
            failpoints.hit("after_progress_read")
            if recovered.takeover != token:
                raise Fenced(
                    f"another instance took over {names.prefix} at the same time: that instance continues, and this one stands by"
                )
            used = recovered.progress.pool if recovered.progress else 0
            if used <= ids_in_use:
                break
            _log.info("the last progress names a pool of %d producers: fencing those beyond %d", used, ids_in_use)
            ids_in_use = used
        lost_ends.abort_forgotten_rows(producers)
        check = OpenCheck(settings, watch)
    except BaseException:
        close_quietly(producers)
        raise
    for beyond in producers[2 + pool :]:
        beyond.destroy()
    overcomes = [names.refusal_key] if recovered.refusal is not None else []
    publisher = Publisher(names, ids, producers[:2], producers[2 : 2 + pool], check, overcomes)
    return Fencing(recovered, publisher)


def _fence_ids(producers: list[TransactionalProducer], made: Iterable[TransactionalProducer]) -> None:
    """Fence the ids of these producers: start all of them before waiting for the first."""
    new = list(made)
    producers.extend(new)
    for producer in new:
        producer.start_init()
    for producer in new:
        producer.init()
        failpoints.hit("fence_prepared")


def _take_over(main: TransactionalProducer, names: Names, token: str) -> None:
    main.begin()
    main.produce(names.progress, 0, [{"key": names.takeover_key, "value": token.encode()}])
    main.commit()
