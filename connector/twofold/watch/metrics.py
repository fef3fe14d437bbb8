"""The connector's activity as Prometheus metrics; docs/reference/metrics.md explains each.

A label has a fixed, small set of values: it is never a table, a gid or a position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from twofold import __version__
from twofold.watch.activity_view import LATENCY_BOUNDS_S, ActivityView
from twofold.watch.sampler import Sampler
from twofold.watch.server import Health
from twofold_avro.transcode import is_compiled

END_CAUSES = ("UncertainEnd", "EndedElsewhere", "Fenced", "Refused", "RunEnded", "Unreachable")
PHASES = ("starting", "recovering", "standby", "running", "waiting", "refused", "failed", "stopped")


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
        """What Prometheus scrapes."""
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
        yield self._states(view)
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
    def _states(view: ActivityView) -> Metric:
        family = GaugeMetricFamily("twofold_state", "1 for the state it is in, 0 for the others.", labels=["state"])
        for phase in PHASES:
            family.add_metric([phase], float(view.phase == phase))
        return family

    @staticmethod
    def _counts(view: ActivityView) -> Iterator[Metric]:
        totals = view.totals
        yield CounterMetricFamily("twofold_rows", "Rows committed in Kafka.", totals.rows)
        yield CounterMetricFamily(
            "twofold_transactions", "Source transactions committed in Kafka.", totals.transactions
        )
        commits = CounterMetricFamily("twofold_commits", "Kafka transactions committed.", labels=["kind"])
        for kind in ("main", "prepared", "progress", "backfill"):
            commits.add_metric([kind], totals.commits[kind])
        yield commits
        outcomes = CounterMetricFamily(
            "twofold_prepared", "Prepared transactions that came into a state.", labels=["state"]
        )
        for state in ("staged", "open", "parked", "committed", "rolled back"):
            outcomes.add_metric([state.replace(" ", "_")], totals.prepared[state])
        yield outcomes
        yield CounterMetricFamily("twofold_recoveries", "Recoveries that went through.", totals.recoveries)
        ends = CounterMetricFamily("twofold_run_ends", "Runs that an error ended.", labels=["cause"])
        for cause in sorted({*END_CAUSES, *totals.ends}):
            ends.add_metric([cause], totals.ends[cause])
        yield ends
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
        live = GaugeMetricFamily(
            "twofold_in_doubt", "Prepared transactions without an outcome in Kafka.", labels=["state"]
        )
        for state in ("staged", "open", "parked", "committing"):
            live.add_metric([state], sum(span.state == state for span in view.in_doubt.live.values()))
        yield live
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
