"""What clients wrote down, outside the system: one file of JSON lines a client.

    {"id": "3-17", "gid": null, "ops": [[table, op, key, row], ...]}   before it asked for the end
    {"id": "3-17", "told": "committed" | "rolled back" | "unknown"}     what it was told
    {"seed": [[table, key, row], ...]}                                  rows before the connector

`op` is c, u, d, t, m, or e of an outbox event; `key` and `row` are columns with values. Each
transaction that changes anything writes its id into the table `marks`: what `marks` holds at the
end is what was committed, so that a client that was told nothing needs not be believed.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Op = tuple[str, str, dict[str, Any] | None, dict[str, Any] | None]
"""Table, op, key, row."""


@dataclass(slots=True)
class Entry:
    """One transaction."""

    id: str
    gid: str | None
    ops: list[Op]
    told: str = "unknown"

    @property
    def rows(self) -> list[Op]:
        """All but its events."""
        return [op for op in self.ops if op[1] != "e"]

    @property
    def events(self) -> list[Op]:
        return [op for op in self.ops if op[1] == "e"]


@dataclass(slots=True)
class Journal:
    """All clients'."""

    entries: dict[str, Entry] = field(default_factory=dict)
    seed: list[tuple[str, dict[str, Any], dict[str, Any]]] = field(default_factory=list)


class Writer:
    """One client's file. A line is in the file when the call returns."""

    def __init__(self, file: Path) -> None:
        self._file = file.open("a", buffering=1)
        self._lock = threading.Lock()

    def seed(self, table: str, rows: Iterable[tuple[dict[str, Any], dict[str, Any]]]) -> None:
        self._write({"seed": [[table, key, row] for key, row in rows]})

    def begun(self, name: str, gid: str | None, ops: Sequence[Op]) -> None:
        self._write({"id": name, "gid": gid, "ops": ops})

    def told(self, name: str, what: str) -> None:
        self._write({"id": name, "told": what})

    def _write(self, value: object) -> None:
        with self._lock:
            self._file.write(json.dumps(value) + "\n")

    def close(self) -> None:
        self._file.close()


def read(folder: Path) -> Journal:
    journal = Journal()
    for file in sorted(folder.glob("*.jsonl")):
        for line in file.read_text().splitlines():
            value = json.loads(line)
            if "seed" in value:
                journal.seed += [tuple(row) for row in value["seed"]]
            elif "ops" in value:
                ops = [tuple(op) for op in value["ops"]]
                journal.entries[value["id"]] = Entry(value["id"], value["gid"], ops)
            else:
                journal.entries[value["id"]].told = value["told"]
    return journal
