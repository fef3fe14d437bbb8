"""The last cut of one source, and what the next one must say of each table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from twofold_avro.names import topic_of
from twofold_spark.sinks.cuts import EVERY_TABLE, NO_CUT, Cut, MissingRow
from twofold_spark.sinks.interface import MirrorTable, Sink
from twofold_spark.sources.commit_records import CommitRecord
from twofold_spark.sources.topic_names import reload_command, to_postgres_names

_OF_CUT = "0"
"""In place of a sharded table's version, which the merge for all members makes."""


class NextCut:
    """Follows the cuts of one mirror: versions, tables ahead of the cut, stopped tables."""

    def __init__(
        self, prefix: str, warn: Callable[[str], None], is_shared: Callable[[str], bool] = lambda _: False
    ) -> None:
        """`is_shared` tells sharded tables, which other members change as well."""
        self._prefix = prefix
        self._warn = warn
        self._is_shared = is_shared
        self.cut = NO_CUT
        """The last one."""
        self._ahead: dict[str, int] = {}
        """Tables that have more than the cut, and their sequence numbers."""
        self._loading: tuple[str, ...] = ()
        """The topics of the tables whose load is in progress, by the last commit record."""

    def start_from(self, sink: Sink, cut: Cut) -> None:
        self.cut = cut
        if cut.whole:
            return
        own = (name for name in cut.versions if not self._is_shared(name))
        applied = {name: sink.read_applied(MirrorTable.by_name(name)) for name in own}
        self._ahead = {name: sequence for name, sequence in applied.items() if sequence > cut.sequence}

    def stop_every_table(self, sequence: int, stream_id: str) -> None:
        """Stop all tables, also those that do not exist yet, and continue behind a number."""
        stopped = {EVERY_TABLE, *self.cut.stopped, *self.cut.versions}
        self.cut = replace(
            self.cut, sequence=sequence, stream_id=stream_id, versions={}, stopped=tuple(sorted(stopped))
        )
        self._ahead = {}

    def stop_table(self, table: str) -> None:
        """Stop one table, between two batches."""
        kept = {name: version for name, version in self.cut.versions.items() if name != table}
        self.cut = replace(self.cut, versions=kept, stopped=tuple(sorted({*self.cut.stopped, table})))

    def find_stopped(self, applied: Mapping[MirrorTable, int]) -> set[str]:
        """Return the tables that wait for a reload, before a batch with these tables."""
        stopped = set(self.cut.stopped)
        for table, sequence in applied.items():
            if str(table) in stopped and sequence > self.cut.sequence:
                # Its reload was merged, and the process ended before it could publish.
                stopped.discard(str(table))
            elif str(table) in self.cut.versions and not sequence:
                self.warn_of_absence(str(table))
                stopped.add(str(table))
            elif self._is_begun_before_gap(str(table), sequence):
                stopped.add(str(table))
        return stopped

    def _is_begun_before_gap(self, table: str, sequence: int) -> bool:
        """Whether a gap in the commit records stopped a table that the cut does not name.

        It may have rows: a batch merged it before the gap, and the process ended without a cut. A
        number above the cut's is that of a reload behind the gap, or of a batch that reached there.
        """
        return EVERY_TABLE in self.cut.stopped and table not in self.cut.versions and sequence <= self.cut.sequence

    def name_rows(self, table: str) -> str:
        """Name for people what of a table is stopped and reloaded: of a sharded one, a shard."""
        return f"{table} of {self._prefix}" if self._is_shared(table) else table

    def warn_of_absence(self, table: str) -> None:
        name = self.name_rows(table)
        self._warn(f"mirror: {name} does not exist any more: it is stopped until `{reload_command(table)}`")

    def describe_shards(self, versions: Mapping[str, str], has_topic: Callable[[str], bool] = lambda _: False) -> Cut:
        """Return the cut with these versions of sharded tables.

        The load of a shard is in progress from before its first row on: the cut says so even where
        no member has made the table, because the next process knows only what the cut says.
        `has_topic` tells the topics of this source: a shard that was never seen is stopped with all
        other tables.
        """
        cut = self.cut
        loading = {name for name in versions if self._topic_of(name) in self._loading}
        # A topic whose name was too long for Kafka does not have the table's.
        tables = (topic.removeprefix(f"{self._prefix}.") for topic in self._loading)
        loading |= {name for name in tables if self._is_shared(name)}
        unseen = {name for name in versions if name not in cut.versions} if EVERY_TABLE in cut.stopped else set[str]()
        stopped = {*cut.stopped, *(name for name in unseen if has_topic(self._topic_of(name)))}
        return replace(
            cut,
            versions={
                name: versions.get(name, version)
                for name, version in cut.versions.items()
                if name in versions or not self._is_shared(name)
            },
            backfilling=tuple(sorted({*cut.backfilling, *loading} - stopped)),
            stopped=tuple(sorted(stopped)),
        )

    def advance(self, sink: Sink, last: CommitRecord, applied: dict[MirrorTable, int], stopped: set[str]) -> None:
        """Make the cut of a batch that ends with `last`.

        `applied` has the batch's tables, without the stopped ones.
        """
        self._ahead |= {str(table): sequence for table, sequence in applied.items()}
        self._ahead = {name: sequence for name, sequence in self._ahead.items() if sequence > last.sequence}
        self._loading = last.backfilling
        merged = {
            name: version
            for table in applied
            if (version := _OF_CUT if self._is_shared(name := str(table)) else sink.version_of(table)) is not None
        }
        known = {name: version for name, version in self.cut.versions.items() if name not in stopped}
        versions = {**known, **merged}
        self.cut = Cut(
            sequence=last.sequence,
            applied_lsn=last.applied_lsn,
            committed_us=last.committed_us,
            whole=not self._ahead,
            versions=versions,
            backfilling=self._select(versions, last.backfilling),
            stopped=tuple(sorted(stopped)),
            stream_id=last.stream_id,
            offset=last.offset,
            stale=self._select(versions, last.stale),
            skipped=tuple(
                MissingRow(name, row.lsn, row.key)
                for row in last.skipped
                for name in self._select(versions, (row.topic,))
            ),
        )

    def _select(self, tables: Iterable[str], topics: Collection[str]) -> tuple[str, ...]:
        return tuple(sorted(name for name in tables if self._topic_of(name) in topics))

    def _topic_of(self, table: str) -> str:
        return topic_of(self._prefix, *to_postgres_names(table))
