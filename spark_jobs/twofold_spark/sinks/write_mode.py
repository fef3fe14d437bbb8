"""What a merge into an Iceberg table writes: its files again, or what changed beside them.

Beside them (merge-on-read) each merge leaves a file that all later ones open until compaction, and
marks in another which rows of the older files count no more. For a table of a few kilobytes that is
more work than to rewrite it (copy-on-write). Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

WriteMode = Literal["by-size", "merge-on-read", "copy-on-write"]
WRITE_MODES: tuple[WriteMode, ...] = get_args(WriteMode)
MERGE_MODE = "write.merge.mode"
"""The table's property that a MERGE looks at."""
_SMALL_ROWS, _SMALL_BYTES = 10_000, 256 << 10
_SMALL_AGAIN = 2
"""A table becomes small again at that part of the limits, or it would change at each batch."""


def choose_mode(asked: WriteMode, present: str | None, rows: int | None, size: int | None) -> str:
    """Choose the mode of the next merge, from the present one and the rows and bytes of the table.

    A size that is not known is a large one.
    """
    if asked != "by-size":
        return asked
    part = 1 if present == "copy-on-write" else _SMALL_AGAIN
    small = rows is not None and rows * part <= _SMALL_ROWS and size is not None and size * part <= _SMALL_BYTES
    return "copy-on-write" if small else "merge-on-read"


def list_mode_properties(mode: str) -> Mapping[str, str]:
    """List the properties of a table with this mode.

    MERGE is the mirror's statement; UPDATE and DELETE are people's.
    """
    return {MERGE_MODE: mode, "write.update.mode": mode, "write.delete.mode": mode}
