"""`--sharded`: which tables of a source group's members are one table.

A sharded table lies in the group's own catalog, folder or schemas. Its key is that of the source,
and the member. So a row that moves between two shards is deleted under one key and inserted under
another, and the order of the two does not matter. The column stays also where keys are unique over
all members: without it, one member's delete would remove a row that another member has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from twofold_spark.errors import Refused
from twofold_spark.row_columns import MEMBER, OP
from twofold_spark.sinks.cuts import GlobalCut
from twofold_spark.sources.topic_names import to_postgres_names

SHARED = ""
"""What stands in place of a member's prefix for the sharded tables."""
PROPERTY = "twofold.sharded"
"""The property of the cuts' table that has the patterns."""


@dataclass(frozen=True, slots=True)
class Sharding:
    """The patterns of `schema.name` in PostgreSQL."""

    patterns: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Sharding:
        """Parse `public.accounts,sales.*`; an empty text means none."""
        return cls(tuple(each.strip() for each in text.split(",") if each.strip()))

    def __str__(self) -> str:
        return ",".join(self.patterns)

    def covers(self, table: str) -> bool:
        """Whether a mirrored table (`schema.name`) is a sharded one."""
        name = ".".join(to_postgres_names(table))
        return any(fnmatchcase(name, pattern) for pattern in self.patterns)

    def check_unchanged(self, before: Sharding, last: GlobalCut | None) -> None:
        """Refuse to mirror a table of the last cut in another place than before."""
        parts = [part for _, part, _ in last.parts] if last is not None else []
        known = {name for part in parts for name in (*part.versions, *part.stopped_tables)}
        if moved := sorted(name for name in known if self.covers(name) != before.covers(name)):
            raise Refused(
                f"this place was mirrored with --sharded {str(before) or '(none)'}, and {str(self) or '(none)'} would "
                f"move {', '.join(moved)}",
                at_stake="the rows that these tables have: they would stay behind",
                repair="give the former --sharded, or start over in a new place (--warehouse, and the address in --sink)",
            )


NO_SHARDING = Sharding()


def find_repeated(table: DataFrame, key: Sequence[str], batch: DataFrame | None) -> str | None:
    """Return a key that rows of several members have, with them; among the batch's keys, if one is
    given.
    """
    own = [name for name in key if name != MEMBER]
    if batch is not None:
        table = table.join(batch.where(f.col(OP) != "d").select(*own).distinct(), own, "left_semi")
    counted = table.groupBy(*own).agg(f.sort_array(f.collect_set(MEMBER)).alias("_members"))
    row = counted.where(f.size("_members") > 1).first()
    return (
        f"({', '.join(str(row[name]) for name in own)}) in {' and '.join(row['_members'])}" if row is not None else None
    )
