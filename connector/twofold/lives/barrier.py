"""The barrier before a session's first chunk of a table: which transactions it still waits for.

Pure. A snapshot must see what was published before it and is remembered by nobody: by an earlier
session, or before the topic was emptied. And it must see what the stream does not bring: changes
made before the table joined the publication. Whoever made such a change holds a lock on the table
until a snapshot sees it.
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
