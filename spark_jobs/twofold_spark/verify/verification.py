"""`verify`: compares the mirror with the source bucket by bucket, while both are in use.

Each side sums its rows' digests in some thousand buckets of keys, PostgreSQL by itself and Spark by
itself. Only buckets that differ are compared row by row. So the time grows with the table, and the
driver's memory with its square root.

Under load most of what differs is only on its way. So `verify` writes a marker into the source's
log (`pg_logical_emit_message`, which changes no table). When the mirror's cut has passed the
marker, it compares the same rows again. A row differs if the source did not change it meanwhile,
and the mirror's row behind the marker still differs. Rows that keep changing are compared again
until they settle.

The mirror is read by its cuts, as every reader should. If Kafka and the registry are given,
`verify` also names the last change of each row that differs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property

from twofold_avro.names import topic_of
from twofold_common.positions import Lsn, format_lsn
from twofold_common.printable import counted
from twofold_common.table_names import reload_command
from twofold_spark.errors import SPARK_ERRORS, SetupError, TwofoldError, first_line
from twofold_spark.readers.cut_tables import Tables, read_source
from twofold_spark.sinks.interface import Reader
from twofold_spark.sources.source_database import PublishedTable, SourceDatabase
from twofold_spark.sources.topic_names import to_postgres_names
from twofold_spark.verify import row_digest
from twofold_spark.verify.compared_table import BUCKETS_AT_ONCE, ComparedTable
from twofold_spark.verify.last_change import LastChangeFinder

NAMED_ROWS = 20
"""Number of differing rows that are named of a table."""

MARKER = "twofold.verify"
_TELL_S = 10.0


@dataclass(eq=False)
class Verification:
    """Compares the tables of the mirror with the source."""

    source: SourceDatabase
    _: KW_ONLY
    reader: Reader
    prefix: str
    report: Callable[[str], None]
    """Gets the answer."""
    progress: Callable[[str], None] = lambda _: None
    """Gets what is waited for."""
    publication: str | None = None
    patience: float = 60
    last_changes: LastChangeFinder | None = None
    read_policy: Callable[[str], dict[str, str]] = lambda _: {}
    """Gives a topic's columns under a data policy, which are not compared."""

    def run(self) -> list[TableComparison]:
        """Compare every table of the last cut that the source has, in order.

        A missing publication raises an error before the comparison begins.
        """
        _ = self._published
        tables = sorted(self._tables)
        in_source = [table for table in tables if self.source.read_columns(*to_postgres_names(table))]
        results = []
        # If the source has none of them, it is another database, and the first comparison says so.
        for table in in_source or tables:
            result = self._compare(table)
            self.report(str(result))
            results.append(result)
        for table in sorted({*tables} - {*in_source}):
            self.report(
                f"{table}: NOT in the source (dropped or renamed there), not compared, and no difference: "
                "the mirror keeps the rows that it had"
            )
        return results

    def list_missing(self) -> list[str]:
        """List stopped tables, tables in backfill, and published tables that the mirror lacks.

        A merge makes a table, so the mirror has no table before its first row. Without rows in the
        source either, it is no difference.
        """
        cut = self._tables.cut
        stopped = [to_postgres_names(table) for table in cut.stopped_tables]
        loading = [to_postgres_names(table) for table in cut.backfilling]
        known = {*stopped, *loading, *map(to_postgres_names, cut.versions)}
        absent = []
        for schema, name in stopped:
            command = reload_command(schema, name)
            self.report(f"{schema}.{name}: stopped, NOT in the mirror: `{command}` brings it back")
        for schema, name in loading:
            self.report(f"{schema}.{name}: its backfill is in progress, NOT compared")
        for (schema, name), published in self._published.items():
            if (schema, name) in known:
                continue
            rows_of = self.source.select_from(schema, name, published)
            rows = int(self.source.read_value(f"SELECT count(*) FROM {rows_of}"))
            if rows:
                absent.append((schema, name))
                self.report(f"{schema}.{name}: published, {counted(rows, 'row')}, NOT in the mirror")
            else:
                self.report(f"{schema}.{name}: no rows, equal: the mirror makes the table with its first row")
        return [f"{schema}.{name}" for schema, name in (*stopped, *loading, *absent)]

    @cached_property
    def _published(self) -> Mapping[tuple[str, str], PublishedTable]:
        if self.publication is None:
            return {}
        found = self.source.read_publication(self.publication)
        if found is None:
            raise SetupError(
                f"the source has no publication {self.publication}, so verify cannot tell which tables the mirror lacks: "
                "give the connector's with --publication (its source.publication; else its name)"
            )
        return found

    @cached_property
    def _tables(self) -> Tables:
        """All tables of one cut, so that each table is either compared or missing. The first cut is
        waited for.
        """
        deadline = time.monotonic() + self.patience
        while True:
            try:
                return read_source(self.reader, self.prefix)
            except SetupError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.5)

    def _compare(self, table: str) -> TableComparison:
        topic = topic_of(self.prefix, *to_postgres_names(table))
        policy = self.read_policy(topic)
        if policy:
            listed = ", ".join(f"{column} ({action})" for column, action in sorted(policy.items()))
            self.report(f"{table}: under a data policy, NOT compared: {listed}")
        published = self._published.get(to_postgres_names(table))
        compared = ComparedTable(self.source, self.reader, self.prefix, table, policy, published)
        if compared.unpublished:
            self.report(f"{table}: not published, NOT compared: {', '.join(compared.unpublished)}")
        source, mirror = compared.sum_source_buckets(), compared.sum_mirror_buckets()
        rows = sum(count for count, _ in source.values())
        differing = {b for b in source.keys() | mirror.keys() if source.get(b) != mirror.get(b)}
        deadline = time.monotonic() + self.patience
        is_certain = True
        while differing and is_certain:
            buckets = set(sorted(differing)[:BUCKETS_AT_ONCE])
            before = compared.read_source_rows(buckets)
            began = time.monotonic()
            is_certain = self._await_marker()
            deadline += time.monotonic() - began
            # The mirror first: a row that the source has before and after did not change meanwhile.
            mirrored, after = compared.read_mirror_rows(buckets), compared.read_source_rows(buckets)
            unequal = {k for k in after.keys() | mirrored.keys() if after.get(k) != mirrored.get(k)}
            unchanged = {k for k in unequal if before.get(k) == after.get(k)}
            if not unequal:
                differing -= buckets
                continue
            if not is_certain or unequal == unchanged or time.monotonic() > deadline:
                found = [RowDifference(table, k, after.get(k), mirrored.get(k)) for k in sorted(unequal)]
                found = self._add_skipped(compared, table, topic, found)
                found[:NAMED_ROWS] = self._add_last_changes(compared, topic, found[:NAMED_ROWS])
                is_certain = is_certain and unequal == unchanged
                return TableComparison(table, rows, tuple(found), len(differing), compared.buckets, is_certain, {})
        inexpressible = {} if differing else compared.count_inexpressible()
        return TableComparison(table, rows, (), len(differing), compared.buckets, is_certain, inexpressible)

    def _add_skipped(
        self, compared: ComparedTable, table: str, topic: str, found: list[RowDifference]
    ) -> list[RowDifference]:
        """Mark the rows that a person had skipped; those that nobody knows of come first.

        Which rows they are, the registry alone can tell. A row without a key cannot be told from
        others.
        """
        skipped = [row for row in read_source(self.reader, self.prefix).cut.skipped if row.table == table]
        for row in skipped:
            self.report(f"{table}: lacks the row at {format_lsn(Lsn(row.lsn))}, which a person had skipped")
        if not skipped or self.last_changes is None:
            return found
        keys = [row.key for row in skipped if row.key is not None]
        try:
            known = self.last_changes.read_key_texts(topic, compared.key, keys)
        except (TwofoldError, *SPARK_ERRORS) as error:  # the source may have another key by now
            self.report(f"{table}: which rows these are cannot be told: {first_line(error)}")
            return found
        return sorted((replace(d, is_known=d.text in known) for d in found), key=lambda d: d.is_known)

    def _add_last_changes(self, compared: ComparedTable, topic: str, found: list[RowDifference]) -> list[RowDifference]:
        """Add the last commit of each row; if Kafka cannot answer, the comparison stays valid."""
        if self.last_changes is None:
            return found
        try:
            changes = self.last_changes.find(topic, compared.key, [d.text for d in found])
        except (TwofoldError, *SPARK_ERRORS) as error:
            failed = f"the lookup failed, for all of these rows: {first_line(error)}"
            return [replace(found[0], last_commit=failed), *found[1:]]
        return [
            replace(d, last_commit=str(changes.get(d.text, "Kafka has no change of this row any more"))) for d in found
        ]

    def _await_marker(self) -> bool:
        """Write a marker into the source's log, and wait until the mirror has a cut beyond it.

        A mirror that is behind is waited for while its cut moves. Return False when it has not
        moved for as long as patience lasts.
        """
        marker = int(self.source.read_value(f"SELECT pg_logical_emit_message(false, '{MARKER}', '') - '0/0'::pg_lsn"))
        reached, moved_at = -1, time.monotonic()
        tell_at = moved_at + _TELL_S
        while (at := read_source(self.reader, self.prefix).cut.applied_lsn) < marker:
            now = time.monotonic()
            if at > reached:
                reached, moved_at = at, now
            behind = f"the mirror's cut is at {format_lsn(Lsn(at))}, {marker - at:,} bytes of the source's log before the marker"
            if now - moved_at > self.patience:
                self.progress(f"verify: {behind}, and has not moved for {self.patience:g} s: does the mirror run?")
                return False
            if now >= tell_at:
                tell_at = now + _TELL_S
                self.progress(f"verify: waits: {behind}")
            time.sleep(0.5)
        return True


@dataclass(frozen=True, slots=True)
class RowDifference:
    """A key whose rows differ: on each side the digests, and how often each row is there."""

    table: str
    text: str
    """The key as it is compared; in a keyless table the whole row."""
    source: str | None
    mirror: str | None
    last_commit: str | None = None
    """What Kafka says of the row; None where it was not asked."""
    is_known: bool = False
    """Whether a person had a change of the row skipped."""

    @property
    def key(self) -> str:
        values = ["null" if value is None else value for value in row_digest.split_row_text(self.text)]
        return values[0] if len(values) == 1 else f"({', '.join(values)})"

    def __str__(self) -> str:
        key = self.key if len(self.key) < 80 else f"{self.key[:77]}..."
        last = f"\n    last commit: {self.last_commit}" if self.last_commit is not None else ""
        known = " (a known difference: skipped)" if self.is_known else ""
        return f"{self.table} {key}{known}: source {_shorten(self.source)}, mirror {_shorten(self.mirror)}{last}"


def _shorten(rows: str | None) -> str:
    if rows is None:
        return "no such row"
    counted = (row.split(" ") for row in rows.split(", "))
    return " and ".join(f"{digest[:12]}{'' if count == '1' else f' {count} times'}" for digest, count in counted)


@dataclass(frozen=True, slots=True)
class TableComparison:
    """The result of one table, as `verify` prints it."""

    table: str
    rows: int
    different: tuple[RowDifference, ...]
    buckets: int
    """How many buckets differ for good."""
    of_buckets: int
    is_certain: bool
    """False if the mirror did not pass the marker in time, or a row kept changing."""
    inexpressible: Mapping[str, int]
    """Source values that are null in the mirror, by column: its type cannot express them."""

    @property
    def is_as_known(self) -> bool:
        """Whether the table is equal, or differs in nothing but rows that a person had skipped.

        Buckets that differ without a row that was found are not known.
        """
        known = bool(self.different) and all(d.is_known for d in self.different)
        return not self.buckets or (known and self.buckets <= BUCKETS_AT_ONCE)

    def __str__(self) -> str:
        if not self.buckets:
            nulls = ", ".join(f"{count} of {column}" for column, count in self.inexpressible.items())
            return f"{self.table}: {counted(self.rows, 'row')}, equal" + (
                f"\n  null in the mirror, because its type cannot express them: {nulls}" if nulls else ""
            )
        named = "".join(f"\n  {difference}" for difference in self.different[:NAMED_ROWS])
        more = f"\n  and {len(self.different) - NAMED_ROWS} more" if len(self.different) > NAMED_ROWS else ""
        doubt = "" if self.is_certain else "\n  (the mirror did not catch up in time, so it may only be behind)"
        return f"{self.table}: {counted(self.rows, 'row')}, DIFFERENT in {self.buckets} of {self.of_buckets} buckets:{named}{more}{doubt}"
