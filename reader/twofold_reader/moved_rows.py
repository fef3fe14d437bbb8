"""Orders the changes that come together, for those who keep the shards of a table in one map by its
key: a row that moves is deleted in one shard before it is inserted in another. Pure.

No order of the branches does so: each of two may have deletes of rows that the other one inserts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from twofold_reader.changes import Change
from twofold_reader.whole_transactions import Transaction

Branch = tuple[str, Transaction]
"""A transaction, behind its prefix."""
BranchChange = tuple[str, Transaction, Change]
"""A change, behind its prefix and its transaction."""


def delete_first(branches: Iterable[Branch], last: str) -> Iterator[BranchChange]:
    """Yield the changes of all branches, inserted rows behind the deletes of other prefixes.

    The changes of one row in one prefix keep their order. So a key that is in one shard at most
    ends as that shard has it. Inserted rows wait in memory; those of `last`, whose branches come
    last, need not.
    """
    waiting: dict[tuple[str, str, bytes], list[BranchChange]] = {}
    for prefix, transaction in branches:
        for change in transaction.changes:
            key = None if prefix == last else change.key_bytes
            if key is not None:
                row = prefix, change.table, key
                if change.op in {"c", "r"} or (change.op == "u" and row in waiting):
                    waiting.setdefault(row, []).append((prefix, transaction, change))
                    continue
                yield from waiting.pop(row, ())
            elif change.op == "t":
                for row in [each for each in waiting if each[:2] == (prefix, change.table)]:
                    yield from waiting.pop(row)
            yield prefix, transaction, change
    for changes in waiting.values():
        yield from changes
