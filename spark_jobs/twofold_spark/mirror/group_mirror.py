"""The mirror of a source group: the tables of several sources, global cut after global cut.

The stream of the members' commit records and frontiers only says that there is more. While a global
transaction holds others back, time begins rounds as well. Each round reads the frontiers, then the
commit records, and chooses the greatest global cut. Each member is brought to its part of it by a
mirror of its own, with tables and cuts of its own. Then one row makes the parts a global cut.

A process that ends between may leave a member ahead of the last global cut. The next cut is not
behind it: frontiers and commit records only grow. Readers go by the row.
"""

from __future__ import annotations

import datetime as dt
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait

from pyspark.sql import DataFrame, SparkSession

from twofold_common.global_cut import Member
from twofold_common.global_cut_choice import NOTHING_TORN, Choice, Torn, choose_cut, find_overdue, keep_members
from twofold_common.global_waits import WaitClock, find_waits
from twofold_spark.errors import Refused
from twofold_spark.mirror.batching import MaintenanceSchedule
from twofold_spark.mirror.group_membership import GroupMembership
from twofold_spark.mirror.mirror_job import Mirror
from twofold_spark.mirror.wait_report import NAMED_AFTER_S, WaitReport, describe_torn
from twofold_spark.session import fork_session
from twofold_spark.sinks.global_cuts import GlobalCut, GlobalCutTable, MemberCut
from twofold_spark.sources import kafka_reader
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
        make_table: Callable[[SparkSession], GlobalCutTable],
        *,
        wait_limit_s: float | None = None,
        maintain_every: int = 100,
        keep_cuts: dt.timedelta = dt.timedelta(hours=1),
        named_after_s: float = NAMED_AFTER_S,
        clock: Callable[[], float] = time.monotonic,
        report: Callable[[GlobalCut], None] = lambda _: None,
        report_waits: Callable[[int], None] = lambda _: None,
        warn: Callable[[str], None] = print_progress,
    ) -> None:
        self._kafka = kafka
        self._mirrors = mirrors
        self._topics = {prefix: MemberTopics(kafka, registry, prefix) for prefix in mirrors}
        self._pool = ThreadPoolExecutor(len(mirrors), thread_name_prefix="member")
        self._sessions: dict[str, SparkSession] = {}
        """By prefix: what a merge sets is a session's, and members are merged side by side."""
        self._make_table = make_table
        self._table: GlobalCutTable | None = None
        self._number = 0
        self._torn: Torn = NOTHING_TORN
        self._wait_limit_s = wait_limit_s
        self._schedule = MaintenanceSchedule(maintain_every)
        self._keep_cuts = keep_cuts
        self._is_maintenance_due = False
        self._report = report
        self._report_waits = report_waits
        self._warn = warn
        self._clock = clock
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
        """Apply and publish the next global cut, if there is one."""
        if self._table is None:
            self._table = self._begin(spark)
        # Frontiers first: the commit records that they name are then among those that are read.
        self._at_once(self._mirrors, lambda prefix: self._topics[prefix].read_frontier(spark))
        self._at_once(self._mirrors, lambda prefix: self._topics[prefix].read_commits(spark))
        members = {prefix: topics.as_member() for prefix, topics in self._topics.items()}
        choice, now = self._choose(self._table, members), self._clock()
        if not self._membership.may_apply(choice.cut, {p: each.cut.sequence for p, each in self._mirrors.items()}, now):
            return
        is_admitted = self._membership.admit(members, choice.cut, now)
        changed = {prefix for prefix, each in members.items() if choice.cut[prefix] != each.cut}
        self._apply({prefix: choice.cut[prefix] for prefix in changed})
        if is_admitted or changed & self._membership.joined:
            self._publish(self._table, choice)
            self._is_maintenance_due |= self._schedule.is_due(self._number - 1, self._number)
        if is_admitted or changed:
            self._note_torn(choice.torn)
        self._maintain_if_due(self._table)

    def _choose(self, table: GlobalCutTable, members: Mapping[str, Member]) -> Choice:
        """Choose the next cut. Say what holds it back, when it is time."""
        now = self._clock()
        waits = [each for each in find_waits(members) if each.global_id not in self._torn]
        waited_s = self._wait_clock.measure(waits, now)
        overdue = find_overdue(waited_s, self._wait_limit_s)
        choice = choose_cut(members, self._torn, overdue)
        waits = [each for each in waits if each.global_id not in choice.torn]
        if self._wait_report.note_waits(members, waits, waited_s, now):
            for line in self._wait_report.lines:
                self._warn(line)
            table.replace_waits(self._wait_report.waits)
            self._is_maintenance_due |= self._schedule.is_due(self._number, self._number)
        self._report_waits(len(self._wait_report.waits))
        soon_s = min(NAMED_AFTER_S, self._wait_limit_s or NAMED_AFTER_S)
        self._next_at = now + soon_s if waits or self._wait_report.is_waiting else float("inf")
        return choice

    def close(self) -> None:
        self._pool.shutdown()
        for mirror in self._mirrors.values():
            mirror.close()

    def _begin(self, spark: SparkSession) -> GlobalCutTable:
        table = self._make_table(spark)
        last = table.open(tuple(self._mirrors))
        if last is not None:
            self._number, self._torn = last.number, keep_members(last.torn, self._mirrors)
        parts: Mapping[str, MemberCut] = last.members if last is not None else {}
        for prefix, mirror in self._mirrors.items():
            self._sessions[prefix] = fork_session(spark)
            mirror.begin(self._sessions[prefix])
            if (part := parts.get(prefix)) is not None:
                self._topics[prefix].start_from(part.sequence, part.offset, mirror.cut.identity)
            else:
                self._topics[prefix].start_with_first(mirror.cut.identity)
        self._membership = GroupMembership(
            self._mirrors.keys(), parts.keys(), named_after_s=self._named_after_s, warn=self._warn
        )
        return table

    def _apply(self, chosen: Mapping[str, int]) -> None:
        """Bring these members to their parts."""

        def apply(prefix: str) -> None:
            topics, mirror = self._topics[prefix], self._mirrors[prefix]
            if chosen[prefix] > mirror.cut.sequence:
                mirror.apply_up_to(self._sessions[prefix], chosen[prefix], behind=topics.offset)
            topics.advance_to(chosen[prefix])

        self._at_once(chosen, apply)

    def _at_once(self, prefixes: Iterable[str], do: Callable[[str], None]) -> None:
        """Do it for these members side by side, and raise an error when all have ended."""
        jobs = [self._pool.submit(do, prefix) for prefix in prefixes]
        wait(jobs)
        for job in jobs:
            job.result()

    def _publish(self, table: GlobalCutTable, choice: Choice) -> None:
        parts = {}
        for prefix in sorted(self._membership.joined):
            sequence = choice.cut[prefix]
            if (shown := self._mirrors[prefix].cut.sequence) != sequence:
                raise Refused(
                    f"the mirror of {prefix} stands at cut {shown}, and the global cut names {sequence}: another job wrote to its catalog",
                    at_stake="global transactions would be torn",
                    repair="end the other job, and start over with a new --warehouse",
                )
            parts[prefix] = MemberCut(sequence, self._topics[prefix].offset)
        self._number += 1
        cut = GlobalCut(self._number, parts, choice.torn)
        table.publish(cut)
        self._report(cut)

    def _maintain_if_due(self, table: GlobalCutTable) -> None:
        """Forget old global cuts before the members' cuts that only these name."""
        if not (self._is_maintenance_due or any(each.is_maintenance_due for each in self._mirrors.values())):
            return
        oldest = table.forget(self._keep_cuts)
        parts: Mapping[str, MemberCut] = oldest.members if oldest is not None else {}
        for prefix, mirror in self._mirrors.items():
            mirror.maintain_if_due(parts[prefix].sequence if prefix in parts else None)
        if self._is_maintenance_due:
            table.maintain(self._keep_cuts)
            self._is_maintenance_due = False

    def _note_torn(self, torn: Torn) -> None:
        for line in describe_torn(self._torn, torn):
            self._warn(line)
        self._torn = torn
