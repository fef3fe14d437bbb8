"""Errors that this package raises on purpose.

All are ValueErrors: bytes or names that cannot be right.
"""

from __future__ import annotations


class MalformedRow(ValueError):
    """A row's bytes contradict its relation.

    `offset` is the place in the payload, `column` the column's name if it is known.
    """

    def __init__(self, what: str, *, table: str, column: str | None, offset: int) -> None:
        where = f"column {column} of {table}" if column is not None else table
        self.what = f"{where}: {what}"
        super().__init__(f"{self.what} (at byte {offset})")
        self.table = table
        self.column = column
        self.offset = offset


class NotFramed(ValueError):
    """A message without the registry's frame."""


class MalformedRecord(ValueError):
    """A fixed record's bytes contradict its schema."""


class UnfitSchema(ValueError):
    """A schema that another program registered, and that JSON cannot be encoded with."""


class Misfit(ValueError):
    """JSON that is no value of a schema. `path` is the place in it, as .items[0].sku."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"{path or 'the payload'} {what}")
        self.path = path
