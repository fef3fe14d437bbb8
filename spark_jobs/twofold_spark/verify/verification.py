"""`verify`: is the mirror what the source is? Bucket by bucket, while both are in use.

Each side adds up its rows' digests in some thousand buckets of keys, PostgreSQL by itself and Spark by itself; only what
differs is looked into: the time grows with the table, and what the driver holds with its root. Under load most of what
differs is merely on its way: a marker is put into the source's log (`pg_logical_emit_message`, which changes no table),
and when the mirror's cut has passed it, the same rows are looked at again. A row is different when the source has not
touched it meanwhile and the mirror, beyond the marker, still says something else. Rows that keep changing are looked at
again until they rest.

The mirror is read by its cuts, as any reader should. Of the rows that it names it says which change touched them last,
where Kafka and the registry are told.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from pyspark.sql import SparkSession

from twofold_avro.names import topic_of
from twofold_spark.errors import SPARKS, JobError, MissingGround, said
from twofold_spark.readers.cut_tables import Tables, read_cut
from twofold_spark.sinks import Reader
from twofold_spark.sources.source_database import Source, identifier, literal
from twofold_spark.sources.topic_names import at_source
from twofold_spark.verify import row_digest
from twofold_spark.verify.compared_table import LOOKED_INTO, Sides
from twofold_spark.verify.last_change import Touches

MARKER = "twofold.verify"
_NAMED = 20


@dataclass(frozen=True, slots=True)
class Difference:
    """A key whose rows are not the same on both sides: the digest of each and how often it is there."""

    table: str
    text: str
    """The key as it is compared; of a keyless table the whole row."""
    source: str | None
    mirror: str | None
    last_commit: str | None = None
    """What Kafka says of it; None where it was not asked."""

    @property
    def key(self) -> str:
        values = ["null" if value is None else value for value in row_digest.values(self.text)]
        return values[0] if len(values) == 1 else f"({', '.join(values)})"

    def __str__(self) -> str:
        key = self.key if len(self.key) < 80 else f"{self.key[:77]}..."
        last = f"\n    last commit: {self.last_commit}" if self.last_commit is not None else ""
        return f"{self.table} {key}: source {_short(self.source)}, mirror {_short(self.mirror)}{last}"


def _short(rows: str | None) -> str:
    if rows is None:
        return "no such row"
    counted = (row.split(" ") for row in rows.split(", "))
    return " and ".join(f"{digest[:12]}{'' if count == '1' else f' {count} times'}" for digest, count in counted)


@dataclass(frozen=True, slots=True)
class Compared:
    """One table's result."""

    table: str
    rows: int
    different: tuple[Difference, ...]
    buckets: int
    """How many buckets differ for good."""
    of_buckets: int
    settled: bool
    """False where the mirror did not pass the marker in time, or a row never rested."""
    unsaid: Mapping[str, int]
    """Columns, and how many of their values in the source the contract's type cannot say: null in the mirror."""

    def __str__(self) -> str:
        if not self.buckets:
            nulls = ", ".join(f"{count} of {column}" for column, count in self.unsaid.items())
            return f"{self.table}: {self.rows} rows, equal" + (
                f"\n  null in the mirror, because its type cannot say them: {nulls}" if nulls else ""
            )
        named = "".join(f"\n  {difference}" for difference in self.different[:_NAMED])
        more = f"\n  and {len(self.different) - _NAMED} more" if len(self.different) > _NAMED else ""
        doubt = "" if self.settled else "\n  (the mirror did not come to rest in time: it may only be behind)"
        return f"{self.table}: {self.rows} rows, DIFFERENT in {self.buckets} of {self.of_buckets} buckets:{named}{more}{doubt}"


class Verify:
    """Compares the tables of the mirror with the source."""

    def __init__(
        self,
        spark: SparkSession,
        source: Source,
        *,
        reader: Reader,
        prefix: str,
        publication: str | None = None,
        patience: float = 60,
        touches: Touches | None = None,
        say: Callable[[str], None],
    ) -> None:
        self._spark = spark
        self._source = source
        self._reader = reader
        self._prefix = prefix
        self._publication = publication
        self._patience = patience
        self._touches = touches
        self._say = say
        self._found: Tables | None = None

    def run(self) -> list[Compared]:
        """Every table of the last cut that the source has, in order. A publication that is not there is said before the work."""
        self._published()
        tables = sorted(self._tables)
        there = [table for table in tables if self._source.columns(*at_source(table))]
        results = []
        # Where the source has none of them it is another database, and the first one's comparison says so.
        for table in there or tables:
            result = self._table(table)
            self._say(str(result))
            results.append(result)
        for table in sorted({*tables} - {*there}):
            self._say(
                f"{table}: NOT in the source (dropped there, or renamed): the mirror keeps the rows that it had; not compared, and "
                "no difference"
            )
        return results

    def missing(self) -> list[str]:
        """Tables that the mirror has stopped, those whose backfill is not over, and those that the publication names and it does not have.

        A table without a change yet is not in the mirror either.
        """
        cut = self._tables.cut
        stopped = [at_source(table) for table in cut.stopped_tables]
        loading = [at_source(table) for table in cut.backfilling]
        there = {*stopped, *map(at_source, cut.versions)}
        absent = [table for table in self._published() if table not in there]
        for schema, name in stopped:
            table = f"{schema}.{name}"
            self._say(f"{table}: stopped, NOT in the mirror: `twofold backfill start {table}` brings it back")
        for schema, name in loading:
            self._say(f"{schema}.{name}: its backfill is not over, NOT compared")
        for schema, name in absent:
            rows = self._source.value(f"SELECT count(*) FROM {identifier(schema)}.{identifier(name)}")
            self._say(f"{schema}.{name}: published, {rows} rows, NOT in the mirror")
        return [f"{schema}.{name}" for schema, name in (*stopped, *loading, *absent)]

    def _published(self) -> list[tuple[str, str]]:
        if self._publication is None:
            return []
        its_name = f"pubname = {literal(self._publication)}"
        if self._source.value(f"SELECT count(*) FROM pg_publication WHERE {its_name}") == "0":
            raise MissingGround(
                f"the source has no publication {self._publication}, so what the mirror lacks cannot be told: name the "
                "connector's with --publication (its source.publication; else its name)"
            )
        found = self._source.rows(
            f"SELECT schemaname, tablename FROM pg_publication_tables WHERE {its_name} ORDER BY 1, 2"
        )
        return [(schema, name) for schema, name in found]

    @property
    def _tables(self) -> Tables:
        """Of one cut, so that each table is either compared or missing."""
        self._found = self._found or self._first_cut()
        return self._found

    def _first_cut(self) -> Tables:
        """The tables of the last cut; a mirror that has just been started may take a while to publish its first."""
        deadline = time.monotonic() + self._patience
        while True:
            try:
                self._reader.check_prefix(self._prefix)
                return read_cut(self._spark, reader=self._reader)
            except MissingGround:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.5)

    def _table(self, table: str) -> Compared:
        sides = Sides(self._spark, self._source, self._reader, table)
        source, mirror = sides.source_buckets(), sides.mirror_buckets()
        rows = sum(count for count, _ in source.values())
        differing = {b for b in source.keys() | mirror.keys() if source.get(b) != mirror.get(b)}
        deadline = time.monotonic() + self._patience
        settled = True
        rows_before: dict[str, str] = {}
        while differing and settled:
            looked = set(sorted(differing)[:LOOKED_INTO])
            rows_before = sides.source_rows(looked)
            settled = self._passed(deadline)
            rows_after, mirrored = sides.source_rows(looked), sides.mirror_rows(looked)
            unequal = {k for k in rows_after.keys() | mirrored.keys() if rows_after.get(k) != mirrored.get(k)}
            rested = {k for k in unequal if rows_before.get(k) == rows_after.get(k)}
            if not unequal:
                differing -= looked
                continue
            if unequal == rested or time.monotonic() > deadline:
                found = [Difference(table, k, rows_after.get(k), mirrored.get(k)) for k in sorted(unequal)]
                found[:_NAMED] = self._with_commits(sides, table, found[:_NAMED])
                return Compared(
                    table, rows, tuple(found), len(differing), sides.buckets, settled and unequal == rested, {}
                )
        return Compared(table, rows, (), len(differing), sides.buckets, settled, {} if differing else sides.unsaid())

    def _with_commits(self, sides: Sides, table: str, found: list[Difference]) -> list[Difference]:
        """Those that are named, with the last commit of each. What Kafka cannot answer takes nothing from the comparison."""
        if self._touches is None:
            return found
        try:
            touched = self._touches.of(topic_of(self._prefix, *at_source(table)), sides.key, [d.text for d in found])
        except (JobError, *SPARKS) as error:
            return [
                replace(found[0], last_commit=f"could not be looked up, nor the others': {said(error)}"),
                *found[1:],
            ]
        return [replace(d, last_commit=str(touched.get(d.text, "no change of it is in Kafka any more"))) for d in found]

    def _passed(self, deadline: float) -> bool:
        """Puts a marker into the source's log and waits until the mirror has a cut beyond it."""
        marker = int(self._source.value(f"SELECT pg_logical_emit_message(false, '{MARKER}', '') - '0/0'::pg_lsn"))
        while read_cut(self._spark, reader=self._reader).cut.applied_lsn < marker:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.5)
        return True
