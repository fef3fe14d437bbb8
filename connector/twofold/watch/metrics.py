"""The connector's activity as Prometheus metrics; docs/reference/metrics.md explains each.

A label has a fixed, small set of values: it is never a table, a gid or a position.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import get_args

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from twofold import __version__
from twofold.watch.activity_view import LATENCY_BOUNDS_S, ActivityView, Kind, Phase
from twofold.watch.in_doubt_log import InDoubtState
from twofold.watch.sampler import Sampler
from twofold.watch.server import Health
from twofold_avro.transcode import is_compiled

END_CAUSES = ("UncertainEnd", "EndedElsewhere", "Fenced", "Refused", "RunEnded", "Unreachable")


class Metrics:
    """Reads the activity when it is scraped, and does nothing between scrapes."""

    def __init__(
        self,
        name: str,
        slot: str,
        view: Callable[[], ActivityView],
        health: Callable[[], Health],
        sampler: Sampler,
        held_back: Callable[[], tuple[int, int]] | None = None,
    ) -> None:
        """`held_back`: in a source group, the numbers of `InDoubtAnswers.count_held_back`."""
        self._name = name
        self._slot = slot
        self._view = view
        self._health = health
        self._sampler = sampler
        self._held_back = held_back
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)

    def text(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        view, health = self._view(), self._health()
        yield self._gauge(
            "twofold_build_info",
            "Constant 1.",
            1,
            version=__version__,
            connector=self._name,
            compiled=str(is_compiled()).lower(),
        )
        states = {phase: view.phase == phase for phase in get_args(Phase)}
        what = "1 for the state it is in, 0 for the others."
        yield self._each(GaugeMetricFamily, "twofold_state", what, "state", states)
        yield self._gauge("twofold_ready", "1: the slot is held, recovery is done, and the loop turns.", health.ready)
        yield self._gauge("twofold_healthy", "0: stalled or refused.", health.healthy)
        yield from self._counts(view)
        yield from self._positions(view)
        yield from self._mirror(view)
        yield from self._prepared(view)
        yield from self._source()

    @staticmethod
    def _gauge(name: str, what: str, value: float, **labels: str) -> Metric:
        family = GaugeMetricFamily(name, what, labels=list(labels))
        family.add_metric(list(labels.values()), float(value))
        return family

    @staticmethod
    def _each(
        kind: type[GaugeMetricFamily | CounterMetricFamily], name: str, what: str, label: str, values: Mapping[str, int]
    ) -> Metric:
        """Return a metric with a number for each value of its label."""
        family = kind(name, what, labels=[label])
        for value, number in values.items():
            family.add_metric([value], float(number))
        return family

    def _counts(self, view: ActivityView) -> Iterator[Metric]:
        totals = view.totals
        yield CounterMetricFamily("twofold_rows", "Rows committed in Kafka.", totals.rows)
        yield CounterMetricFamily(
            "twofold_transactions", "Source transactions committed in Kafka.", totals.transactions
        )
        commits = {kind: totals.commits[kind] for kind in get_args(Kind)}
        yield self._each(CounterMetricFamily, "twofold_commits", "Kafka transactions committed.", "kind", commits)
        states = ("staged", "open", "parked", "committed", "rolled back")
        outcomes = {state.replace(" ", "_"): totals.prepared[state] for state in states}
        what = "Prepared transactions that came into a state."
        yield self._each(CounterMetricFamily, "twofold_prepared", what, "state", outcomes)
        yield CounterMetricFamily("twofold_recoveries", "Recoveries that went through.", totals.recoveries)
        ends = {cause: totals.ends[cause] for cause in sorted({*END_CAUSES, *totals.ends})}
        yield self._each(CounterMetricFamily, "twofold_run_ends", "Runs that an error ended.", "cause", ends)
        latency = HistogramMetricFamily(
            "twofold_commit_latency_seconds",
            "From a commit in the source to its commit in Kafka, of the oldest one in each Kafka transaction.",
        )
        seen, buckets = 0, []
        for bound, count in zip((*map(str, LATENCY_BOUNDS_S), "+Inf"), totals.latencies, strict=True):
            seen += count
            buckets.append((bound, float(seen)))
        latency.add_metric([], buckets, totals.latency_s)
        yield latency

    def _positions(self, view: ActivityView) -> Iterator[Metric]:
        at, sampler = view.positions, self._sampler
        yield self._gauge("twofold_applied_lsn", "Everything up to this position is in Kafka.", at.applied)
        yield self._gauge("twofold_read_lsn", "How far the stream has been read.", at.read)
        yield self._gauge("twofold_confirmed_lsn", "What PostgreSQL was told it may forget.", at.flushed)
        yield self._gauge("twofold_commit_sequence", "Number of the last commit record.", at.sequence)
        yield self._gauge("twofold_waiting_transactions", "Read and not yet committed in Kafka.", at.waiting)
        newest = sampler.newest
        if newest is not None and newest.behind_bytes is not None and newest.behind_s is not None:
            yield self._gauge("twofold_behind_bytes", "WAL that is not yet in Kafka.", newest.behind_bytes)
            yield self._gauge("twofold_behind_seconds", "How long the oldest of it has been there.", newest.behind_s)

    def _mirror(self, view: ActivityView) -> Iterator[Metric]:
        newest = self._sampler.newest
        if newest is None or (lag := self._sampler.mirror_lag(view, newest.at)) is None:
            return
        yield self._gauge("twofold_mirror_behind_bytes", "WAL that is in Kafka and not yet in the mirror.", lag.bytes)
        yield self._gauge("twofold_mirror_behind_seconds", "How long the oldest of it has been there.", lag.behind_s)

    def _prepared(self, view: ActivityView) -> Iterator[Metric]:
        in_doubt = Counter(span.state for span in view.in_doubt.live.values())
        states = {state: in_doubt[state] for state in get_args(InDoubtState)}
        what = "Prepared transactions without an outcome in Kafka."
        yield self._each(GaugeMetricFamily, "twofold_in_doubt", what, "state", states)
        yield from self._group()
        yield from self._backfills(view)

    def _group(self) -> Iterator[Metric]:
        if self._held_back is None:
            return
        half_committed, commits = self._held_back()
        yield self._gauge(
            "twofold_half_committed",
            "Global transactions in doubt here that another member of the group has committed.",
            half_committed,
        )
        yield self._gauge("twofold_held_back_commits", "Commit records of members that wait for these.", commits)

    def _backfills(self, view: ActivityView) -> Iterator[Metric]:
        loads = view.backfills
        yield self._gauge("twofold_backfill_tables", "Tables whose rows are being loaded.", len(loads))
        yield self._gauge("twofold_backfill_rows", "Rows of these tables published so far.", sum(b.rows for b in loads))
        yield self._gauge(
            "twofold_stale_tables", "Tables whose topics may lack what PostgreSQL did not send.", view.stale_tables
        )
        reading = [load for load in loads if load.state == "reading"]
        per_second = sum(load.per_second for load in reading)
        yield self._gauge("twofold_backfill_rows_per_second", "Of those being read, on the average so far.", per_second)
        if left := [load.left_s for load in reading if load.left_s is not None]:
            yield self._gauge(
                "twofold_backfill_remaining_seconds",
                "Until the last of those being read is loaded, at that.",
                max(left),
            )

    def _source(self) -> Iterator[Metric]:
        sampler = self._sampler
        yield self._gauge(
            "twofold_source_up",
            "1: PostgreSQL answered when it was asked last.",
            not sampler.source_error and sampler.source is not None,
        )
        if (source := sampler.source) is None:
            return
        yield self._gauge("twofold_source_lsn", "The end of PostgreSQL's WAL.", source.wal_lsn)
        oldest = min((each.prepared_at for each in source.prepared), default=None)
        newest = sampler.newest
        yield self._gauge(
            "twofold_oldest_prepared_seconds",
            "Age of the oldest prepared transaction of the database; 0 if there is none.",
            max(0.0, newest.at - oldest) if oldest and newest else 0,
        )
        if own := next((each for each in source.holders if each.slot == self._slot), None):
            yield self._gauge(
                "twofold_slot_held_bytes", "WAL that PostgreSQL keeps for the connector's slot.", own.held_bytes
            )
            if own.safe_bytes is not None:
                yield self._gauge(
                    "twofold_slot_safe_bytes",
                    "WAL that may be written before the slot is lost; only with max_slot_wal_keep_size.",
                    own.safe_bytes,
                )
