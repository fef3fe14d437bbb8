"""The mirror: the tables of one source, or of several as a source group, cut after cut.

The stream of commit records and frontiers only says that there is more. While a global transaction
holds others back, time begins rounds as well. Each round reads the frontiers, then the commit
records, and chooses the greatest cut that keeps every global transaction whole. The mirror of one
source chooses what one batch reaches. A `SourceMirror` brings each source to its part of the cut,
in one batch. Then the parts are published as one cut; a large one is approached in several.

The tables and the cuts alone say what was applied, and a start reads on from the last cut. So a
retried batch, a killed driver and a lost checkpoint all end in the same tables. A job that is
killed between merge and publication leaves tables ahead of the last cut. The next cut includes
those tables' rows: frontiers and commit records only grow. Readers go by the versions of the cut.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession

from twofold_common.global_cut import Member, greatest_cut, greatest_step
from twofold_common.global_loads import Loads
from twofold_common.global_waits import WaitClock, find_waits
from twofold_spark.errors import Refused, TableRefused
from twofold_spark.mirror.batching import AppliedBatch, MaintenanceSchedule, MirrorSettings
from twofold_spark.mirror.group_waiting import NAMED_AFTER_S, GroupMembership, WaitReport
from twofold_spark.mirror.shard_folding import ShardFolder
from twofold_spark.mirror.sharded_tables import ShardedTables
from twofold_spark.mirror.source_mirror import SourceMirror
from twofold_spark.session import fork_session, limit_tasks_to_cores
from twofold_spark.sinks.cuts import EVERY_TABLE, NO_CUT, Cut, GlobalCut
from twofold_spark.sinks.place import Place
from twofold_spark.sinks.sharding import SHARED
from twofold_spark.sources import kafka_reader, member_topics
from twofold_spark.sources.group_topics import GroupTopics
from twofold_spark.sources.kafka_client import Kafka, KafkaAdmin
from twofold_spark.sources.member_topics import UNKNOWN, MemberTopics, SoleTopics
from twofold_spark.sources.registry import Registry
from twofold_spark.streaming import EndRequested, print_progress

_FIRST_LOOK_S = 10.0
"""A stream without anything new begins no round in this time."""


class Mirror:
    """Handles the micro-batches of the stream of commit records and frontiers."""

    def __init__(
        self,
        spark: SparkSession,
        kafka: Kafka,
        registry: Registry,
        prefixes: Collection[str],
        place: Place,
        settings: MirrorSettings,
        *,
        ending: threading.Event | None = None,
        named_after_s: float = NAMED_AFTER_S,
        report_place: Callable[[str, Cut], None] = lambda _prefix, _cut: None,
        report: Callable[[str, AppliedBatch], None] = lambda _prefix, _batch: None,
        report_cut: Callable[[GlobalCut], None] = lambda _: None,
        report_waits: Callable[[int], None] = lambda _: None,
        warn: Callable[[str], None] = print_progress,
    ) -> None:
        self._spark = spark
        self._admin = KafkaAdmin(spark, kafka)
        ending = ending or threading.Event()
        self._shared = ShardedTables(place, ShardFolder(self._admin, settings.tables_at_once), settings)
        self._sources = {
            prefix: SourceMirror(spark, self._admin, registry, prefix, place, settings, ending, warn, self._shared)
            for prefix in prefixes
        }
        self._is_alone = len(prefixes) == 1
        self._topics: dict[str, MemberTopics]
        self._reader: GroupTopics | SoleTopics
        if self._is_alone:
            ((prefix, source),) = self._sources.items()
            self._reader = SoleTopics(self._admin, registry, prefix, source.raise_or_begin)
            self._topics = {prefix: self._reader}
        else:
            self._topics = {prefix: MemberTopics(self._admin, prefix) for prefix in prefixes}
            self._reader = GroupTopics(self._admin, registry, self._topics)
        self._pool = ThreadPoolExecutor(len(prefixes), thread_name_prefix="member")
        self._place = place
        self._has_begun = self._has_failed = False
        self._schedule = MaintenanceSchedule(settings.maintain_every)
        self._keep_cuts = settings.keep_cuts
        self._is_maintenance_due = False
        self._report_place = report_place
        self._told: dict[str, int] = {}
        """The sequence numbers that were reported last, by member."""
        self._report = report
        self._report_cut = report_cut
        self._report_waits = report_waits
        self._warn = warn
        self._loads = Loads()
        self._wait_clock = WaitClock()
        self._named_after_s = named_after_s
        self._wait_report = WaitReport(named_after_s)
        self._membership = GroupMembership((), (), named_after_s=named_after_s, warn=warn)
        self._round = threading.Lock()
        self._next_at = time.monotonic() + _FIRST_LOOK_S
        """When a round is due that nothing new begins."""

    def open_stream(self) -> DataFrame:
        """Open the stream that says that there is more."""
        if self._is_alone:
            (topics,) = self._topics.values()
            return kafka_reader.watch_topics(self._spark, self._admin.kafka, subscribe=topics.topic)
        prefixes = "|".join(re.escape(prefix) for prefix in self._sources)
        pattern = rf"(?:{prefixes})\.(?:commits|frontiers)"
        return kafka_reader.watch_topics(self._spark, self._admin.kafka, subscribePattern=pattern)

    def __call__(self, _micro_batch: DataFrame, _batch_id: int) -> None:
        with self._round:
            self._run_round()

    def look_if_due(self, has_ended: bool) -> None:
        """Look again while something waits, though nothing new has come.

        The checkpoint may be ahead of the tables: a stream that has ended without a round had
        nothing that was new to it.
        """
        is_due = time.monotonic() >= self._next_at or (has_ended and not self._has_begun)
        if is_due and self._round.acquire(blocking=False):
            try:
                self._run_round()
            finally:
                self._round.release()

    def _run_round(self) -> None:
        """Apply and publish what there is, mostly one cut. After an error nothing more is done."""
        if self._has_failed:
            raise EndRequested
        self._has_failed = True
        if not self._has_begun:
            self._begin()
            self._has_begun = True
        is_complete = False
        while not is_complete:
            is_complete = self._reader.read(self._spark)
            while self._advance():
                self._maintain_if_due()
        self._maintain_if_due()
        self._has_failed = False

    def _advance(self) -> bool:
        """Apply and publish the next cut, if there is one. Return whether one may follow."""
        chosen, is_admitted = self._choose()
        changed = {prefix for prefix, topics in self._topics.items() if chosen[prefix] != topics.cut}
        if not changed and not is_admitted:
            return False
        batches = self._apply({prefix: chosen[prefix] for prefix in changed})
        applied_at = time.monotonic()
        changes = self._fold_shards()
        for refused in self._shared.merge(self._place.next_number, self._find_loading()):
            self._leave_out(refused)
        cut = self._publish(chosen)
        self._shared.note_published(cut.number)
        took = time.monotonic() - applied_at
        for prefix, batch in batches.items():
            published = replace(
                batch,
                cut=self._sources[prefix].cut,
                seconds=batch.seconds + took,
                lag_seconds=batch.lag_seconds + took,
                stages={**batch.stages, "publish": took / len(batches)},
                changes=batch.changes + changes[prefix],
                is_shown=cut.whole and prefix in cut.members,
                behind=self._topics[prefix].behind,
            )
            self._report(prefix, published)
        self._report_places(cut, batches)
        if cut.members:
            self._report_cut(cut)
        self._is_maintenance_due |= self._schedule.is_due(cut.number - 1, cut.number)
        return bool(changed)

    def _report_places(self, cut: GlobalCut, reported: Collection[str]) -> None:
        """Report the members that a cut shows further, without a batch: one that has joined, or one
        whose batch was in a cut that was not whole.
        """
        if not cut.whole:
            return
        for prefix, part in cut.members.items():
            if prefix not in reported and self._told.get(prefix) != part.sequence:
                self._report_place(prefix, part)
        self._told = {prefix: part.sequence for prefix, part in cut.members.items()}

    def _fold_shards(self) -> Counter[str]:
        """Fold what the sources' batches have of sharded tables; return the changes by source."""
        changes = Counter[str]()
        for table, folded in self._shared.fold().items():
            changes.update(folded.changes)
            for prefix in folded.waiting:
                self._sources[prefix].note_shard(table, 0, waits=True)
            for prefix, size in folded.bytes.items():
                self._sources[prefix].note_shard(table, size, waits=False)
            for refused in folded.refusals:
                self._leave_out(refused)
        return changes

    def _find_loading(self) -> set[str]:
        """Return the sharded tables that lack rows of some member, by what was applied."""
        joined, loading = self._membership.joined, set[str]()
        for prefix, source in self._sources.items():
            part = source.describe_shards(self._shared.versions)
            loading |= {*part.backfilling, *part.stopped, *(() if prefix in joined else part.versions)}
        return loading

    def _choose(self) -> tuple[Mapping[str, int], bool]:
        """Choose how far the next cut shows each source, and whether it admits members."""
        if self._is_alone:
            self._next_at = float("inf")
            return self._find_limits(1), False
        streams = {prefix: topics.stream_id for prefix, topics in self._topics.items()}
        members = {prefix: topics.as_member(streams) for prefix, topics in self._topics.items()}
        chosen, now = self._choose_global(members), time.monotonic()
        if not self._membership.may_apply(chosen, {p: each.cut.sequence for p, each in self._sources.items()}, now):
            return {prefix: topics.cut for prefix, topics in self._topics.items()}, False
        return chosen, self._membership.admit(members, chosen, now)

    def _choose_global(self, members: Mapping[str, Member]) -> Mapping[str, int]:
        """Choose the next cut of a group. Say what holds it back, when it is time."""
        now, waits = time.monotonic(), find_waits(members)
        waited_s = self._wait_clock.measure(waits, now)
        loads = self._loads.follow(members)
        whole = greatest_cut(members, loads)
        held_loads = self._loads.find_reasons()
        if self._wait_report.note_waits(members, waits, waited_s, held_loads, now):
            for line in self._wait_report.lines:
                self._warn(line)
            self._place.replace_waits(self._wait_report.waits)
            number = self._place.next_number
            self._is_maintenance_due |= self._schedule.is_due(number, number)
        self._report_waits(len(self._wait_report.waits))
        is_waiting = bool(waits or held_loads) or self._wait_report.is_waiting
        self._next_at = now + NAMED_AFTER_S if is_waiting else float("inf")
        return greatest_step(members, loads, whole, self._find_limits)

    def _find_limits(self, factor: int) -> dict[str, int]:
        """Return how far one batch of each source reaches. Its tables may be further."""
        limits, ranges = {}, member_topics.RANGES_PER_BATCH * factor
        for prefix, source in self._sources.items():
            limit = self._topics[prefix].find_limit(source.sizer.next_rows() * factor, ranges)
            limits[prefix] = max(limit, source.cut.sequence)
        return limits

    def close(self) -> None:
        self._pool.shutdown()
        for source in self._sources.values():
            source.close()
        self._shared.close()
        self._admin.close()
        self._place.close()

    def _begin(self) -> None:
        # Not the session of the micro-batches: some rounds are not theirs.
        self._spark = fork_session(self._spark)
        limit_tasks_to_cores(self._spark)
        self._place.open(self._spark, tuple(self._sources))
        self._shared.begin(self._spark, self._sources.keys())
        parts = self._place.last.members if self._place.last is not None else {}
        for prefix, source in self._sources.items():
            source.begin()
            for table in self._shared.gone:
                source.stop_table(table)
            if (part := parts.get(prefix, NO_CUT)).sequence:
                self._topics[prefix].start_from(part.sequence, part.offset, source.cut.identity)
            else:  # the first that Kafka has
                self._topics[prefix].start_from(0, UNKNOWN, source.cut.identity)
            if self._place.last is None or self._place.last.whole:
                self._report_place(prefix, part)
                self._told[prefix] = part.sequence
        joined = self._sources.keys() if self._is_alone else parts.keys()
        self._membership = GroupMembership(
            self._sources.keys(), joined, named_after_s=self._named_after_s, warn=self._warn
        )

    def _apply(self, chosen: Mapping[str, int]) -> dict[str, AppliedBatch]:
        """Bring these sources to their parts; return the batches, which are published later."""
        batches: dict[str, AppliedBatch] = {}

        def apply(prefix: str) -> None:
            topics, source = self._topics[prefix], self._sources[prefix]
            if chosen[prefix] > source.cut.sequence:
                held = topics.find_records(chosen[prefix])
                batches[prefix] = source.apply_up_to(chosen[prefix], held=held, behind=topics.offset)
            topics.advance_to(chosen[prefix])

        self._at_once(chosen, apply)
        return batches

    def _at_once(self, prefixes: Iterable[str], do: Callable[[str], None]) -> None:
        """Do one step for these sources side by side, and raise its error when all have ended."""
        jobs = [self._pool.submit(do, prefix) for prefix in prefixes]
        wait(jobs)
        for job in jobs:
            job.result()

    def _publish(self, chosen: Mapping[str, int]) -> GlobalCut:
        """Publish what was applied; without the tables that only the step of all tables refuses."""
        while True:
            cut = self._make_cut(chosen)
            try:
                self._place.publish(cut)
            except TableRefused as refused:
                self._leave_out(refused)
            else:
                return cut

    def _leave_out(self, refused: TableRefused) -> None:
        """Make the cut without a table that a step behind the sources' batches refused."""
        prefixes = [refused.prefix]
        if refused.prefix == SHARED:
            owners = [prefix for prefix, source in self._sources.items() if refused.table in source.cut.versions]
            prefixes = self._shared.find_members(refused.table) or owners
        if not {*prefixes} <= self._sources.keys() or not prefixes:
            raise refused
        for prefix in prefixes:
            self._sources[prefix].leave_out(refused)
        if refused.prefix == SHARED:
            self._shared.take_back(refused.table)

    def _make_cut(self, chosen: Mapping[str, int]) -> GlobalCut:
        """Make the cut of what was applied, with how far the tables of all other sources are."""
        joined, versions = self._membership.joined, self._shared.versions
        parts = {prefix: source.describe_shards(versions) for prefix, source in self._sources.items()}
        for prefix in joined:
            if (shown := parts[prefix].sequence) != chosen[prefix]:
                raise Refused(
                    f"the mirror of {prefix} stands at cut {shown}, and the global cut names {chosen[prefix]}: another job wrote to its tables",
                    at_stake="global transactions would be torn",
                    repair="end the other job, and start over in a new place (--warehouse, and the address in --sink)",
                )
            if not shown:
                # Its first commit record says which loads are in progress.
                parts[prefix] = replace(parts[prefix], backfilling=tuple(sorted(versions)))
        last = self._place.last
        known = {**last.others, **last.members, **parts} if last is not None else parts
        return GlobalCut(
            self._place.next_number,
            {prefix: parts[prefix] for prefix in sorted(joined)},
            {
                prefix: self._wait(parts[prefix]) if prefix in parts else self._leave(known[prefix])
                for prefix in sorted({*known} - joined)
            },
        )

    def _wait(self, part: Cut) -> Cut:
        """Return what a cut says of a source that joins.

        A sharded table may have rows of it that wait for a reload. To readers they are in progress:
        what is stopped of a source that has left holds nobody back.
        """
        stopped = {name for name in part.stopped_tables if self._shared.covers(name)}
        return replace(part, backfilling=tuple(sorted({*part.backfilling, *stopped})))

    def _leave(self, part: Cut) -> Cut:
        """Return what a cut says of a source that is no member any more.

        Its rows in sharded tables stay, and nobody waits for more of them. If such a table is gone,
        they are gone with it, and no part says whether there were any: the source is loaded again
        if it joins again.
        """
        versions = {name: version for name, version in part.versions.items() if not self._shared.covers(name)}
        loading = tuple(name for name in part.backfilling if not self._shared.covers(name))
        stopped = {*part.stopped, EVERY_TABLE} if self._shared.gone else part.stopped
        return replace(part, versions=versions, backfilling=loading, stopped=tuple(sorted(stopped)))

    def _maintain_if_due(self) -> None:
        """Maintain the table of cuts, and a share of the sources' tables."""
        are_sources_due = any(each.maintenance.due for each in self._sources.values())
        if self._is_maintenance_due or are_sources_due or self._shared.maintenance.due:
            self._place.forget(self._keep_cuts)
        if self._is_maintenance_due:
            self._place.maintain(self._keep_cuts)
            self._is_maintenance_due = False
        if are_sources_due:
            self._at_once(self._sources, lambda prefix: self._sources[prefix].maintain_if_due())
        self._shared.maintain_if_due()
