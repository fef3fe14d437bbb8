"""The result of comparing one table, as `verify` prints it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from twofold_spark.verify import row_digest

NAMED_ROWS = 20
"""Number of differing rows that are named of a table."""


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

    @property
    def key(self) -> str:
        values = ["null" if value is None else value for value in row_digest.split_row_text(self.text)]
        return values[0] if len(values) == 1 else f"({', '.join(values)})"

    def __str__(self) -> str:
        key = self.key if len(self.key) < 80 else f"{self.key[:77]}..."
        last = f"\n    last commit: {self.last_commit}" if self.last_commit is not None else ""
        return f"{self.table} {key}: source {_shorten(self.source)}, mirror {_shorten(self.mirror)}{last}"


def _shorten(rows: str | None) -> str:
    if rows is None:
        return "no such row"
    counted = (row.split(" ") for row in rows.split(", "))
    return " and ".join(f"{digest[:12]}{'' if count == '1' else f' {count} times'}" for digest, count in counted)


@dataclass(frozen=True, slots=True)
class TableComparison:
    """The result of one table."""

    table: str
    rows: int
    different: tuple[RowDifference, ...]
    buckets: int
    """How many buckets differ for good."""
    of_buckets: int
    settled: bool
    """False if the mirror did not pass the marker in time, or a row kept changing."""
    inexpressible: Mapping[str, int]
    """Source values that are null in the mirror, by column: its type cannot express them."""

    def __str__(self) -> str:
        if not self.buckets:
            nulls = ", ".join(f"{count} of {column}" for column, count in self.inexpressible.items())
            return f"{self.table}: {self.rows} rows, equal" + (
                f"\n  null in the mirror, because its type cannot express them: {nulls}" if nulls else ""
            )
        named = "".join(f"\n  {difference}" for difference in self.different[:NAMED_ROWS])
        more = f"\n  and {len(self.different) - NAMED_ROWS} more" if len(self.different) > NAMED_ROWS else ""
        doubt = "" if self.settled else "\n  (the mirror did not catch up in time, so it may only be behind)"
        return f"{self.table}: {self.rows} rows, DIFFERENT in {self.buckets} of {self.of_buckets} buckets:{named}{more}{doubt}"
