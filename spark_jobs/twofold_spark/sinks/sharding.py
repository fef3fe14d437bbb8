"""`--sharded`: which tables of a source group's members are one table.

A sharded table lies in the group's own catalog, folder or schemas. Its key is that of the source,
and the member. So a row that moves between two shards is deleted under one key and inserted under
another, and the order of the two does not matter.

The table has the column also where keys are unique over all members. A key that one member has at
each cut may have a delete of another one later, and only the row can say whose it is:

- A load of the west brings row 1, which has moved there. A load shows what was committed before its
  snapshot, so the cut with the delete in the east may come behind the chunk with the row. By the
  source's key alone that delete removes the row of the west, and nothing brings it again. The model
  of tests/model/test_group_shards.py finds such a history for "a load of the new shard hides a
  move", where a table has the source's key and deletes are merged before inserts.
- A truncate or a reload of the east removes the rows of the east, and no others.

A list of each key's member beside the table would be the column again. Readers leave it out by
selecting the others: with `--unique-keys` no key is twice in a cut that has the table.
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


def find_repeated(
    table: DataFrame | None, key: Sequence[str], batch: DataFrame | None, *, everywhere: bool
) -> str | None:
    """Return a key that rows of several members have, with them; among the batch's keys, if one is
    given, or everywhere.
    """
    assert table is not None, "it exists"
    own = [name for name in key if name != MEMBER]
    if batch is not None and not everywhere:
        table = table.join(batch.where(f.col(OP) != "d").select(*own).distinct(), own, "left_semi")
    counted = table.groupBy(*own).agg(f.sort_array(f.collect_set(MEMBER)).alias("_members"))
    row = counted.where(f.size("_members") > 1).first()
    return (
        f"({', '.join(str(row[name]) for name in own)}) in {' and '.join(row['_members'])}" if row is not None else None
    )
