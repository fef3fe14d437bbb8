"""Where a mirror is: the tables of its sources, and one table of cuts, in one sink.

In Iceberg and Delta the cuts are rows of a table with versions, and so are the reasons why the next
cut waits.
"""

from __future__ import annotations

import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Any, ClassVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from twofold_common.global_waits import LongWait
from twofold_spark.errors import Refused
from twofold_spark.sinks import cut_rows, sharding
from twofold_spark.sinks.cut_rows import KEY, STREAM, TOPIC, VersionedTables
from twofold_spark.sinks.cuts import CUTS, NO_CUT, OF_GROUP, SOURCES, Cut, GlobalCut
from twofold_spark.sinks.interface import MirrorTable, Sink
from twofold_spark.sinks.merge_sql import escape_literal
from twofold_spark.sinks.sharding import NO_SHARDING, SHARED, Sharding

WAITS = "twofold.global_waits"
_WAITS_VIEW = "_twofold_waits"
_WAIT_COLUMNS = (
    "global_id string, since timestamp, "
    "branches array<struct<prefix: string, state: string, sequence: bigint, lsn: bigint, gids: array<string>>>, "
    "held array<struct<prefix: string, commits: bigint>>"
)


class Place(ABC):
    """One writer. The tables of a source group's members have places of their own in it."""

    word: ClassVar[str]
    """What it is, for refusals."""

    def __init__(self, *, of_group: bool, sharding: Sharding = NO_SHARDING) -> None:
        self.of_group = of_group
        self.sharding = sharding
        self.last: GlobalCut | None = None
        """The last one that is published."""

    @abstractmethod
    def open(self, spark: SparkSession, prefixes: tuple[str, ...]) -> None:
        """Prepare the place, or refuse that of other sources; read the last cut.

        The cut's members may differ from `prefixes`, because members join and leave.
        """

    @abstractmethod
    def make_sink(self, spark: SparkSession, prefix: str) -> Sink:
        """Make what writes one source's tables, or the sharded ones (`SHARED`); the place is open.

        The number of a sharded table's merge is that of the global cut. What no cut has of such a
        table is given up when it is read next: only cuts say how far each member's rows are.
        """

    @abstractmethod
    def publish(self, cut: GlobalCut) -> None:
        """Make the cut visible to readers, with what the sinks have merged for it.

        It is durable when this returns.
        """

    @abstractmethod
    def forget(self, keep: dt.timedelta) -> None:
        """Remove the cuts that were replaced more than `keep` ago."""

    @abstractmethod
    def maintain(self, keep: dt.timedelta) -> None:
        """Compact the table of cuts, and expire what was its state before `keep`."""

    @abstractmethod
    def replace_waits(self, waits: Iterable[LongWait]) -> None:
        """Say what the next cut waits for."""

    def close(self) -> None:  # noqa: B027  (Iceberg and Delta hold nothing)
        """Release what the place holds, also after a refusal to open."""

    @property
    def next_number(self) -> int:
        return self.last.number + 1 if self.last is not None else 1

    def find_part(self, prefix: str) -> Cut:
        """Return how far the tables of a source, or the sharded ones, are by the last cut."""
        last = self.last
        if last is None or prefix != SHARED:
            return (last.find_part(prefix) if last is not None else None) or NO_CUT
        return replace(NO_CUT, sequence=last.number, whole=last.whole, versions=self.shared_versions(last))

    def is_shown(self, prefix: str) -> bool:
        """Whether plain names show what the last cut has of a source, or of the sharded tables.

        They wait while a table of any member is ahead: members are shown together.
        """
        return self.last is not None and self.last.whole and self.find_part(prefix).whole

    def shared_versions(self, cut: GlobalCut) -> dict[str, str]:
        """Return the versions of a cut's sharded tables; each member that has rows names them."""
        named = (item for _, part, _ in cut.parts for item in part.versions.items())
        return {name: version for name, version in named if self.sharding.covers(name)}

    def check_sources(self, known: Collection[str], prefixes: Collection[str], *, of_group: bool) -> None:
        """Refuse a place with the mirror of other sources, or with tables in other places."""
        if of_group == self.of_group and {*known} & {*prefixes}:
            return
        held, own = ", ".join(sorted(known)), ", ".join(sorted(prefixes))
        held = f"a source group ({held})" if of_group else f"the prefix {held}"
        own = f"a source group ({own})" if self.of_group else f"the prefix {own}"
        raise Refused(
            f"this {self.word} holds the mirror of {held}, not of {own}",
            at_stake="the tables of several sources would be mixed",
            repair=f"give the --source-group or the --prefix options of this {self.word}, or another {self.word} and a new --checkpoint",
        )


class TablePlace(Place):
    """A place whose cuts are in a table with versions."""

    _spark: SparkSession
    _own: VersionedTables
    """The table of cuts, and those that are beside it."""
    prefixes: tuple[str, ...]

    @abstractmethod
    def _open_tables(self, spark: SparkSession) -> VersionedTables:
        """Return the tables beside the cuts, and prepare their place."""

    @abstractmethod
    def _read_last(self) -> GlobalCut | None:
        """Return the last cut that is decided."""

    @abstractmethod
    def read_cuts(self, spark: SparkSession) -> DataFrame:
        """Read the rows of the cuts that are decided."""

    @abstractmethod
    def _compact(self, table: str, keep: dt.timedelta) -> None:
        """Compact the table, and expire what was its state before `keep`."""

    def open(self, spark: SparkSession, prefixes: tuple[str, ...]) -> None:
        self._spark, self.prefixes, own = spark, prefixes, self._open_tables(spark)
        self._own = own
        sources = ",".join(sorted(prefixes))
        if not own.has(CUTS):
            own.create(CUTS, cut_rows.COLUMNS, {SOURCES: sources, OF_GROUP: str(self.of_group)})
        present = own.read_property(CUTS, SOURCES)
        of_group = own.read_property(CUTS, OF_GROUP) == str(True)
        self.last = self._read_last()
        known = [*self.last.members, *self.last.others] if self.last is not None else present.split(",")
        self.check_sources(known, prefixes, of_group=of_group)
        self.sharding.check_unchanged(Sharding.parse(own.read_property(CUTS, sharding.PROPERTY)), self.last)
        for key, value in ((SOURCES, sources), (sharding.PROPERTY, str(self.sharding))):
            if own.read_property(CUTS, key) != value:
                spark.sql(f"ALTER TABLE {own.name(CUTS)} SET TBLPROPERTIES ('{key}' = {_text(value)})")
        if self.of_group and not own.has(WAITS):
            own.create(WAITS, _WAIT_COLUMNS, {})
        elif self.of_group and not spark.table(own.name(WAITS)).isEmpty():
            self.replace_waits(())  # an earlier process said so

    def forget(self, keep: dt.timedelta) -> None:
        cuts = self.read_cuts(self._spark)
        if kept := cut_rows.find_first_kept(cuts, keep):
            self._delete_before(kept)

    @abstractmethod
    def _delete_before(self, number: int) -> None:
        """Delete the rows of earlier cuts."""

    def maintain(self, keep: dt.timedelta) -> None:
        for table in (CUTS, WAITS) if self.of_group else (CUTS,):
            self._compact(table, keep)

    def replace_waits(self, waits: Iterable[LongWait]) -> None:
        name, rows = self._own.name(WAITS), [_make_wait_row(each) for each in waits]
        if not rows:
            self._spark.sql(f"DELETE FROM {name}")
            return
        # One task for all of them: a UNION ALL is planned and run row by row.
        listed = cut_rows.format_rows(rows, _WAIT_COLUMNS)
        self._spark.range(0, 1, 1, 1).select(f.inline(listed)).createOrReplaceTempView(_WAITS_VIEW)
        self._spark.sql(f"INSERT OVERWRITE {name} SELECT * FROM {_WAITS_VIEW}")


def list_owner_properties(table: MirrorTable) -> dict[str, str]:
    """List the properties by which a table is known again."""
    return {TOPIC: table.topic, KEY: ",".join(table.key), **({STREAM: table.stream_id} if table.stream_id else {})}


def check_owner(table: MirrorTable, name: str, read_property: Callable[[str], str]) -> None:
    """Refuse a table that has another topic's rows, or those of a former stream, or that the mirror
    did not make.

    `read_property` reads what the table says, and `name` is its name in SQL. Two members whose
    catalogs are one would take each other's numbers for their own, and pass over changes. So would
    a stream those of the one before it.
    """
    topic = read_property(TOPIC) if table.topic else ""
    if topic == table.topic:
        if table.stream_id and (stream := read_property(STREAM)) not in ("", table.stream_id):
            raise Refused(
                f"the table {name} has the rows of a former stream of {topic} ({stream}, and it is {table.stream_id} now)",
                at_stake="the changes up to the number that the former stream had reached: they would be passed over",
                repair="drop or move that table, then start again; or start over in a new place",
            )
        return
    if topic:
        raise Refused(
            f"the table {name} has the rows of the topic {topic}, and not those of {table.topic}",
            at_stake="the rows of both: they would be mixed, and changes passed over",
            repair="give each member of a source group, and each mirror or changelog, a catalog (or folder) with tables of its own, "
            "and start over in a new place",
        )
    raise Refused(
        f"there is a table {name} that the mirror did not make",
        at_stake="that table's rows",
        repair=f"mirror into a place of its own, rename that table, or leave {table} out of the publication",
    )


def refuse_other_cut(cut: GlobalCut) -> Refused:
    return Refused(
        f"another job published the cut {cut.number}",
        at_stake="cuts in an order that moves a source back",
        repair="end the other job, then start again",
    )


def refuse_lost_cuts(table: str, number: int, last: int, *, option: str) -> Refused:
    """Make the refusal of a sharded table that has more than the cuts, which alone say what of each
    member is applied.
    """
    return Refused(
        f"{table} has a merge for cut {number}, and twofold.cuts ends with {last}: somebody has deleted cuts, or "
        "another job publishes them",
        at_stake="changes that would be applied again; tables without a key would have them twice",
        repair="end the other job, then start again; without one, restore the whole place from a backup, or start "
        f"over in a new place ({option})",
    )


def _make_wait_row(each: LongWait) -> dict[str, Any]:
    return {
        "global_id": each.wait.global_id,
        "since": dt.datetime.now(dt.UTC) - dt.timedelta(seconds=each.waited_s),
        "branches": [place._asdict() for place in each.wait.places],
        "held": [{"prefix": prefix, "commits": count} for prefix, count in each.held.items()],
    }


def _text(value: str) -> str:
    return f"'{escape_literal(value)}'"
