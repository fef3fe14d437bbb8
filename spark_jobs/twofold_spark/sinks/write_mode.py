"""Chooses what a merge into an Iceberg table writes: its files again, or the changes beside them.

Beside them (merge-on-read) each merge leaves a file that all later merges open until compaction. In
another file it marks which rows of the older files count no more. For a table of a few kilobytes
that is more work than to rewrite it (copy-on-write). So it is for a batch that changes most of a
table's rows, of whatever size: all the files that it leaves behind are read by the next one. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

WriteMode = Literal["by-size", "merge-on-read", "copy-on-write"]
WRITE_MODES: tuple[WriteMode, ...] = get_args(WriteMode)
MERGE_MODE = "write.merge.mode"
"""The table's property that a MERGE looks at."""
_SMALL_ROWS, _SMALL_BYTES = 10_000, 256 << 10
_SMALL_AGAIN = 2
"""A table becomes small again at that part of the limits, or it would change at each batch."""


@dataclass(frozen=True, slots=True)
class MergedTable:
    """A table before a merge: its mode, and how large it is; None is not known."""

    mode: str | None
    rows: int | None
    bytes: int | None

    def choose_mode(self, asked: WriteMode, changed: int | None) -> str:
        """Choose the mode of a merge that changes at most so many rows.

        A size that is not known is a large one.
        """
        if asked != "by-size":
            return asked
        part = 1 if self.mode == "copy-on-write" else _SMALL_AGAIN
        fits = self.rows is not None and self.rows * part <= _SMALL_ROWS
        small = fits and self.bytes is not None and self.bytes * part <= _SMALL_BYTES
        return "copy-on-write" if small or self.is_mostly_changed(changed) else "merge-on-read"

    def is_mostly_changed(self, changed: int | None) -> bool:
        """Whether a merge that changes so many rows changes most of them."""
        return changed is not None and self.rows is not None and changed * 2 > self.rows


def list_mode_properties(mode: str) -> Mapping[str, str]:
    """List the properties of a table with this mode.

    MERGE is the mirror's statement; UPDATE and DELETE are people's.
    """
    return {MERGE_MODE: mode, "write.update.mode": mode, "write.delete.mode": mode}
