"""Names of the columns that the jobs add to a row's own."""

from __future__ import annotations

OP, UNCHANGED, KEY = "_twofold_op", "_twofold_unchanged", "_twofold_key"
"""Columns of a folded row, beside the row's own, which may have any name. No table has them.

`OP` is `d` for a deleted row and anything else for a row that exists. `UNCHANGED` lists the columns
whose value PostgreSQL did not send. `KEY` holds the bytes of the message key.
"""
COPIES = "_copies"
"""Column of a keyless table: how many copies of the row the table has."""
KEY_TEXT = "_key_"
"""Prefix of a column that holds a key column's value as text, as the message key has it."""
MEMBER = "_member"
"""Column of a sharded table: the topic prefix of the member that has the row."""
