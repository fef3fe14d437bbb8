"""`--partition-by`: how new Iceberg tables are partitioned. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from twofold_spark.errors import UsageError

HELP = (
    "partition a table that the mirror makes; again for each table. TRANSFORM is COLUMN, bucket(N, COLUMN), "
    "truncate(N, COLUMN), years(COLUMN), months(COLUMN), days(COLUMN) or hours(COLUMN). "
    "A table that exists stays as it is; Iceberg alone"
)
_TERM = re.compile(
    r"(?:(?P<sized>bucket|truncate)\(\s*(?P<size>[1-9][0-9]*)\s*,\s*(?P<of>\w+)\s*\)"
    r"|(?P<time>year|month|day|hour)s?\(\s*(?P<at>\w+)\s*\)"
    r"|(?P<column>\w+))",
    re.ASCII,
)
_LARGEST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Transform:
    """A field of a partitioning: a method of Iceberg's PartitionSpec.Builder, and its arguments."""

    method: str
    column: str
    size: int | None = None

    @classmethod
    def parse(cls, text: str) -> Transform:
        found = _TERM.fullmatch(text.strip())
        if found is None or int(found["size"] or 0) > _LARGEST:
            raise ValueError(
                f"{text.strip()!r} must be a column, bucket(N, COLUMN), truncate(N, COLUMN), or "
                "years, months, days or hours of (COLUMN)"
            )
        if found["sized"]:
            return cls(found["sized"], found["of"], int(found["size"]))
        return cls(found["time"] or "identity", found["at"] or found["column"])

    def __str__(self) -> str:
        if self.method == "identity":
            return self.column
        return f"{self.method}({self.column if self.size is None else f'{self.size}, {self.column}'})"


@dataclass(frozen=True, slots=True)
class Partitioning:
    """What the options say of each table (`schema.name`)."""

    tables: tuple[tuple[str, tuple[Transform, ...]], ...] = ()

    def of(self, table: str) -> tuple[Transform, ...]:
        return dict(self.tables).get(table, ())


NO_PARTITIONING = Partitioning()


def parse_partitioning(text: str) -> tuple[str, tuple[Transform, ...]]:
    """Parse `SCHEMA.TABLE=TRANSFORM[,TRANSFORM]`."""
    table, equals, terms = text.partition("=")
    if not equals or not all(table.partition(".")):
        raise ValueError(f"{text!r} must be SCHEMA.TABLE=TRANSFORM[,TRANSFORM]")
    return table, tuple(Transform.parse(term) for term in re.split(r",(?![^(]*\))", terms))


def gather(given: Collection[tuple[str, tuple[Transform, ...]]]) -> Partitioning:
    """Put the options together; a table that is named twice is refused."""
    tables = [table for table, _ in given]
    if twice := sorted({table for table in tables if tables.count(table) > 1}):
        raise UsageError(
            f"--partition-by names {', '.join(twice)} twice: give all transforms of a table in one option, "
            "with commas between them"
        )
    return Partitioning(tuple(given))
