"""What a check says: the kind of a violation, what it is, and the smallest piece of history that
shows it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from chaos.reading import Record

SHOWN: Final = 12
"""So many records of a violation are shown."""


@dataclass(frozen=True, slots=True)
class Violation:
    kind: str
    what: str
    history: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n      ".join((f"{self.kind}: {self.what}", *self.history))


def show(records: Iterable[Record]) -> tuple[str, ...]:
    """As a person reads them; large values are cut."""
    lines = []
    for record in list(records)[:SHOWN]:
        value = record.value
        if isinstance(value, dict) and "op" in value:
            inside = value.get("transaction") or {}
            value = {k: value.get(k) for k in ("op", "after", "unchanged")} | {"transaction": inside.get("id"), "n": inside.get("total_order")}  # fmt: skip
        lines.append(f"{record.topic}[{record.partition}]@{record.offset} {record.key} {value}"[:300])
    return tuple(lines)
