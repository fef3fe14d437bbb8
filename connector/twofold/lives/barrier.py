"""The barrier before a session's first chunk of a table: which transactions it still waits for.

Pure. A snapshot must see two kinds of changes. Nobody remembers the keys of changes that an earlier
session published, or that came before the topic was emptied. And the stream does not bring changes
from before the table joined the publication. The transaction of such a change holds a lock on the
table until a snapshot sees the change.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping


def blocking(
    holders: Mapping[str, tuple[int, str]],
    at_beginning: frozenset[str] | None,
    *,
    resumed: bool,
    delivered: Collection[tuple[int, str]],
) -> frozenset[str]:
    """Return the names of the lock holders that the barrier waits for.

    `holders` has the xid and gid of those that hold a lock now; `at_beginning` those that held one
    when the barrier began, None at its first check. Behind an earlier session's barrier (`resumed`)
    a prepared transaction that the stream has brought again is not waited for.
    """
    waited_for = holders.keys() if at_beginning is None else holders.keys() & at_beginning
    return frozenset(name for name in waited_for if not (resumed and holders[name] in delivered))
