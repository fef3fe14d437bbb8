"""The progress of a table's backfill: the field `bound` of the table's pin.

Pure. The value is JSON, so that a person can read it in the progress topic. It has the message key
of the last published row in key order (Avro bytes in hex, without the schema's id), the keys to
read again, and counts for people.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """The progress behind a chunk, committed in the chunk's Kafka transaction."""

    after: bytes | None = None
    """The last published key; None: the load reads from the beginning."""
    order: tuple[str, ...] = ()
    """The key's columns, each with how its index compares it, in the order for which `after` was
    the last key; empty: any order.
    """
    again: frozenset[bytes] = frozenset()
    scanned: bool = False
    """The last key has been reached; only `again` is left."""
    reload: bool = False
    """The load begins with a truncate, which is not published yet."""
    delayed: bool = False
    """Rows of a table without a message key are delayed. A later session does not have them."""
    rows: int = 0
    size: int = 0
    seconds: float = 0.0
    """The reading time of all sessions together."""

    def to_bytes(self) -> bytes:
        values = {
            "after": None if self.after is None else self.after.hex(),
            "order": self.order,
            "again": sorted(key.hex() for key in self.again),
            "scanned": self.scanned,
            "reload": self.reload,
            "delayed": self.delayed,
            "rows": self.rows,
            "size": self.size,
            "seconds": round(self.seconds, 3),
        }
        return json.dumps(values, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes | None) -> LoadProgress:
        if not data:
            return cls()
        values = json.loads(data)
        after, order, again = values.pop("after"), values.pop("order"), values.pop("again")
        return cls(
            after=None if after is None else bytes.fromhex(after),
            order=tuple(order),
            again=frozenset(map(bytes.fromhex, again)),
            **values,
        )

    @property
    def complete(self) -> bool:
        return self.scanned and not self.again

    def behind(
        self,
        *,
        last: bytes | None,
        order: tuple[str, ...],
        among: frozenset[bytes],
        scanned: bool,
        unread: frozenset[bytes] = frozenset(),
    ) -> LoadProgress:
        """Return the progress behind a chunk.

        `last`: the key of its last row in key order; `among`: the keys that were read again;
        `unread`: those that must be read again now.
        """
        return replace(
            self,
            after=last or self.after,
            order=order or self.order,
            again=self.again - among | unread,
            scanned=self.scanned or scanned,
        )

    def counted(self, rows: int, size: int, seconds: float) -> LoadProgress:
        return replace(self, rows=self.rows + rows, size=self.size + size, seconds=self.seconds + seconds)

    @property
    def per_second(self) -> float:
        """Return the rows per second, on the average so far."""
        return self.rows / self.seconds if self.seconds else 0.0

    def left_s(self, estimate: int) -> float | None:
        """Return the expected remaining time for so many rows; None: not known."""
        return max(0, estimate - self.rows) / self.per_second if estimate and self.per_second else None

    def describe(self, estimate: int) -> str:
        """Describe the progress for people."""
        share = f" of about {estimate:,}" if estimate else ""
        left = "" if (seconds := self.left_s(estimate)) is None else f", about {seconds:,.0f} s left"
        speed = f", {self.per_second:,.0f} rows a second" if self.per_second else ""
        rows = f"{self.rows:,} row{'s' * (self.rows != 1)}"
        return f"{rows}{share}, {self.size:,} bytes{speed}{left}"
