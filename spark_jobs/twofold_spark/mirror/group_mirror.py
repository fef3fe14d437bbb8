"""The mirror of a source group: the tables of several sources, global cut after global cut.

The stream of the members' commit records and frontiers only says that there is more. While a global
transaction holds others back, time begins rounds as well. Each round reads the frontiers, then the
commit records, and chooses the greatest global cut. Each member is brought to its part of it by a
mirror of its own, in one batch. Then the parts are published as one global cut; a large one is
approached in several.

A process that ends between may leave tables ahead of the last global cut. The next cut is not
behind it: frontiers and commit records only grow. Readers go by the versions of the cut.
"""

from __future__ import annotations

import datetime as dt
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession

from twofold_common.global_cut import Member, greatest_cut, greatest_step
from twofold_common.global_loads import Loads
from twofold_common.global_waits import WaitClock, find_waits
from twofold_spark.errors import Refused
from twofold_spark.mirror.batching import AppliedBatch, MaintenanceSchedule
from twofold_spark.mirror.group_membership import GroupMembership
from twofold_spark.mirror.mirror_job import RANGES_PER_BATCH, Mirror
from twofold_spark.mirror.wait_report import NAMED_AFTER_S, WaitReport
from twofold_spark.session import fork_session
from twofold_spark.sinks.cuts import GlobalCut
from twofold_spark.sinks.place import Place
from twofold_spark.sources import kafka_reader
from twofold_spark.sources.group_topics import GroupTopics
from twofold_spark.sources.kafka_client import Kafka
from twofold_spark.sources.member_topics import MemberTopics
from twofold_spark.sources.registry import Registry
from twofold_spark.streaming import print_progress


class GroupMirror:
    """Handles the micro-batches of the members' commit records and frontiers."""

    def __init__(
        self,
        kafka: Kafka,
        registry: Registry,
        mirrors: Mapping[str, Mirror],
        place: Place,
        *,
        maintain_every: int = 100,
        keep_cuts: dt.timedelta = dt.timedelta(hours=1),
        named_after_s: float = NAMED_AFTER_S,
        clock: Callable[[], float] = time.monotonic,
        report: Callable[[GlobalCut], None] = lambda _: None,
        report_waits: Callable[[int], None] = lambda _: None,
        report_publishing: Callable[[float], None] = lambda _: None,
        warn: Callable[[str], None] = print_progress,
    ) -> None:
        self._kafka = kafka
        self._mirrors = mirrors
        self._topics = {prefix: MemberTopics(kafka, prefix) for prefix in mirrors}
        self._reader = GroupTopics(kafka, registry, self._topics)
        self._pool = ThreadPoolExecutor(len(mirrors), thread_name_prefix="member")
        self._sessions: dict[str, SparkSession] = {}
        """By prefix: what a merge sets is a session's, and members are merged side by side."""
        self._place = place
        self._has_begun = False
        self._schedule = MaintenanceSchedule(maintain_every)
        self._keep_cuts = keep_cuts
        self._is_maintenance_due = False
        self._report = report
        self._report_waits = report_waits
        self._report_publishing = report_publishing
        self._warn = warn
        self._clock = clock
        self._loads = Loads()
        self._wait_clock = WaitClock()
        self._named_after_s = named_after_s
        self._wait_report = WaitReport(named_after_s)
        self._membership = GroupMembership((), (), named_after_s=named_after_s, warn=warn)
        self._round = threading.Lock()
        self._spark: SparkSession | None = None
        """The stream's session, from its first round on."""
        self._next_at = float("inf")
        """When a round is due that nothing new begins."""

    def open_stream(self, spark: SparkSession) -> DataFrame:
        """Open the stream that says that there is more."""
        prefixes = "|".join(re.escape(prefix) for prefix in self._mirrors)
        return kafka_reader.watch_topics(spark, self._kafka, rf"(?:{prefixes})\.(?:commits|frontiers)")

    def __call__(self, micro_batch: DataFrame, _batch_id: int) -> None:
        with self._round:
            self._spark = micro_batch.sparkSession
            self._run_round(self._spark)

    def look_if_due(self) -> None:
        """Look again while something waits, though nothing new has come."""
        if self._spark is not None and self._clock() >= self._next_at and self._round.acquire(blocking=False):
            try:
                self._run_round(self._spark)
            finally:
                self._round.release()

    def _run_round(self, spark: SparkSession) -> None:
        """Apply and publish what there is, mostly one global cut."""
        if not self._has_begun:
            self._begin(spark)
            self._has_begun = True
        self._reader.read(spark)
        while self._advance():
            pass
        self._maintain_if_due()

    def _advance(self) -> bool:
        """Apply and publish the next global cut, if there is one. Return whether one may follow."""
        streams = {prefix: topics.stream_id for prefix, topics in self._topics.items()}
        members = {prefix: topics.as_member(streams) for prefix, topics in self._topics.items()}
        chosen, now = self._choose(members), self._clock()
        if not self._membership.may_apply(chosen, {p: each.cut.sequence for p, each in self._mirrors.items()}, now):
            return False
        is_admitted = self._membership.admit(members, chosen, now)
        changed = {prefix for prefix, each in members.items() if chosen[prefix] != each.cut}
        if not changed and not is_admitted:
            return False
        batches = self._apply({prefix: chosen[prefix] for prefix in changed})
        applied_at = self._clock()
        cut = self._publish(chosen)
        self._report_publishing(self._clock() - applied_at)
        for prefix, batch in batches:
            self._mirrors[prefix].report(replace(batch, is_shown=prefix in cut.members))
        if cut.members:
            self._report(cut)
        self._is_maintenance_due |= self._schedule.is_due(cut.number - 1, cut.number)
        return bool(changed)

    def _choose(self, members: Mapping[str, Member]) -> Mapping[str, int]:
        """Choose the next cut. Say what holds it back, when it is time."""
        now, waits = self._clock(), find_waits(members)
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
        """Return how far one batch of each member reaches. Its tables may be further."""
        limits = {}
        for prefix, mirror in self._mirrors.items():
            limit = self._topics[prefix].find_limit(mirror.next_rows * factor, RANGES_PER_BATCH * factor)
            limits[prefix] = max(limit, mirror.cut.sequence)
        return limits

    def close(self) -> None:
        self._pool.shutdown()
        self._reader.close()
        for mirror in self._mirrors.values():
            mirror.close()
        self._place.close()

    def _begin(self, spark: SparkSession) -> None:
        self._place.open(spark, tuple(self._mirrors))
        parts = self._place.last.members if self._place.last is not None else {}
        for prefix, mirror in self._mirrors.items():
            self._sessions[prefix] = fork_session(spark)
            mirror.begin(self._sessions[prefix])
            if (part := parts.get(prefix)) is not None and part.sequence:
                self._topics[prefix].start_from(part.sequence, part.offset, mirror.cut.identity)
            else:
                self._topics[prefix].start_with_first(mirror.cut.identity)
        self._membership = GroupMembership(
            self._mirrors.keys(), parts.keys(), named_after_s=self._named_after_s, warn=self._warn
        )

    def _apply(self, chosen: Mapping[str, int]) -> list[tuple[str, AppliedBatch]]:
        """Bring these members to their parts; return the batches, which are published later."""
        batches: list[tuple[str, AppliedBatch]] = []

        def apply(prefix: str) -> None:
            topics, mirror, spark = self._topics[prefix], self._mirrors[prefix], self._sessions[prefix]
            if chosen[prefix] > mirror.cut.sequence:
                held = topics.find_records(chosen[prefix])
                applied = mirror.apply_up_to(spark, chosen[prefix], held=held, behind=topics.offset)
                batches.extend((prefix, batch) for batch in applied)
            topics.advance_to(chosen[prefix])

        self._at_once(chosen, apply)
        return batches

    def _at_once(self, prefixes: Iterable[str], do: Callable[[str], None]) -> None:
        """Do one step for these members side by side, and raise its error when all have ended."""
        jobs = [self._pool.submit(do, prefix) for prefix in prefixes]
        wait(jobs)
        for job in jobs:
            job.result()

    def _publish(self, chosen: Mapping[str, int]) -> GlobalCut:
        """Publish what the mirrors have applied, with how far the tables of all others are."""
        parts = {prefix: mirror.cut for prefix, mirror in self._mirrors.items()}
        joined = self._membership.joined
        for prefix in joined:
            if (shown := parts[prefix].sequence) != chosen[prefix]:
                raise Refused(
                    f"the mirror of {prefix} stands at cut {shown}, and the global cut names {chosen[prefix]}: another job wrote to its tables",
                    at_stake="global transactions would be torn",
                    repair="end the other job, and start over in a new place (--warehouse, and the address in --sink)",
                )
        last = self._place.last
        known = {**last.others, **last.members, **parts} if last is not None else parts
        cut = GlobalCut(
            self._place.next_number,
            {prefix: parts[prefix] for prefix in sorted(joined)},
            {prefix: known[prefix] for prefix in sorted({*known} - joined)},
        )
        self._place.publish(cut)
        return cut

    def _maintain_if_due(self) -> None:
        """Maintain the table of cuts, and a share of the members' tables."""
        are_members_due = any(each.is_maintenance_due for each in self._mirrors.values())
        if self._is_maintenance_due or are_members_due:
            self._place.forget(self._keep_cuts)
        if self._is_maintenance_due:
            self._place.maintain(self._keep_cuts)
            self._is_maintenance_due = False
        if are_members_due:
            self._at_once(self._mirrors, lambda prefix: self._mirrors[prefix].maintain_if_due())
