"""COMMENT ON, and a text that is hard to carry."""

from __future__ import annotations

HARD = """it's a "note" of ${price}, 100 % \\d, C:\\temp;
-- of two lines 🦀"""


def comment_on(what: str, text: str) -> str:
    """Return the statement; `what` is `TABLE name` or `COLUMN table.name`."""
    quoted = text.replace("'", "''")
    return f"COMMENT ON {what} IS '{quoted}'"
