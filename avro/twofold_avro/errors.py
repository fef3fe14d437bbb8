"""What this package raises on purpose. All of them are ValueErrors: bytes or names that cannot be what they claim."""

from __future__ import annotations


class MalformedRow(ValueError):
    """A row's bytes are not what the relation says. `offset` is the place in the payload, `column` the column's name if known."""

    def __init__(self, what: str, *, table: str, column: str | None, offset: int) -> None:
        where = f"column {column} of {table}" if column is not None else table
        self.what = f"{where}: {what}"
        super().__init__(f"{self.what} (at byte {offset})")
        self.table = table
        self.column = column
        self.offset = offset


class NotFramed(ValueError):
    """A message without the registry's frame."""
