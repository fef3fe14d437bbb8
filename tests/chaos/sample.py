"""A history as a faultless connector would leave it, made without any server."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from chaos.checks import History
from chaos.ends import Ended
from chaos.events import EVENT, event_op, is_event
from chaos.journal import Entry, Journal, Op
from chaos.reading import Record

PREFIX = "p"
PARTITIONS = {"notes": 1, "messages": 1}


class Sample:
    """Transactions go in; topics, journal and source come out."""

    def __init__(self) -> None:
        self.journal = Journal()
        self.rows: list[Record] = []
        self.commits: list[Record] = []
        self.ends: list[Ended] = []
        self.tables: dict[str, dict[int, dict[str, Any]]] = {}
        self.notes: list[str] = []
        self.marks: list[str] = []
        self._next: dict[tuple[str, int], int] = {}
        self._lsn = 100
        self._group: list[Record] = []
        self._prepared: list[dict[str, Any]] = []
        self._inside = 0

    def seed(self, table: str, *rows: dict[str, Any]) -> None:
        for row in rows:
            self.tables.setdefault(table, {})[row["id"]] = row
            self.journal.seed.append((table, {"id": row["id"]}, row))

    def transaction(self, name: str, ops: list[Op], *, gid: str | None = None, told: str = "committed") -> None:
        mark: Op = ("marks", "c", {"id": name}, {"id": name})
        self.journal.entries[name] = Entry(name, gid, [*ops, mark], told)
        if told == "rolled back":
            return
        self._lsn += 10
        begun, at = self._lsn, self._lsn + 5
        number = f"{begun}:0/{begun:X}"
        order = 0
        for table, op, key, row in [*ops, mark]:
            if op == "e":
                self._say(key or {}, row or {})
                continue
            order += 1
            self._write(table, op, key, row, {"id": number, "total_order": order})
        self.marks.append(name)
        self._inside += 1
        if gid:
            self._prepared.append({"id": number, "xid": begun, "gid": gid, "commit_lsn": at})

    def load(self, *tables: str) -> None:
        """A reload: truncates, and then the rows, table by table."""
        for table in tables:
            self._write(table, "t", None, None, None)
        self.commit("reload", tables)
        for number, table in enumerate(tables):
            for key, row in list(self.tables[table].items()):
                self._write(table, "r", {"id": key}, row, None)
            self.commit("backfill", tables[number + 1 :])

    def _write(
        self, table: str, op: str, key: Any, row: dict[str, Any] | None, transaction: dict[str, Any] | None
    ) -> None:
        topic = f"{PREFIX}.messages" if table == "messages" else f"{PREFIX}.public.{table}"
        partitions = PARTITIONS.get(table, 2)
        where = range(partitions) if op == "t" else [hash(str(key)) % partitions if key else 0]
        value: dict[str, Any] = {
            "op": op, "before": None, "after": row, "unchanged": [], "transaction": transaction, "source": {},
        }  # fmt: skip
        if op == "m":
            assert row is not None
            value["message"] = {"content": row["content"].encode()}
        if table == "docs" and op == "u" and row is not None and row["n"] % 2:
            value |= {"after": {**row, "body": None}, "unchanged": ["body"]}
        for partition in where:
            self._append(topic, partition, key, value)
            if op == "d":
                self._append(topic, partition, key, None)
        self._apply(table, op, key, row)

    def _say(self, place: dict[str, Any], said: dict[str, Any]) -> None:
        headers = tuple((name, value.encode()) for name, value in said["headers"].items())
        self._append(f"{PREFIX}{EVENT}{place['topic']}", hash(place["key"]) % 2, place["key"], said["value"], headers)

    def _append(
        self, topic: str, partition: int, key: Any, value: Any, headers: tuple[tuple[str, bytes | None], ...] = ()
    ) -> None:
        offset = self._next.get((topic, partition), 0)
        self._next[topic, partition] = offset + 1
        self._group.append(Record(topic, partition, offset, key, value, headers=headers))

    def _apply(self, table: str, op: str, key: Any, row: dict[str, Any] | None) -> None:
        if table == "notes" and row is not None:
            self.notes.append(row["line"])
        elif table not in {"messages", "marks"} and op in {"c", "u"}:
            self.tables.setdefault(table, {})[key["id"]] = row or {}
        elif op == "d":
            del self.tables[table][key["id"]]
        elif op == "t" and table == "scratch":
            self.tables.setdefault(table, {}).clear()

    def commit(self, kind: str = "batch", loading: Sequence[str] = ()) -> None:
        """A Kafka transaction with what has been written since the last."""
        ranges: dict[tuple[str, int], dict[str, Any]] = {}
        for row in self._group:
            place = row.topic, row.partition
            r = ranges.setdefault(place, {"topic": place[0], "partition": place[1], "first": row.offset, "count": 0})
            r["last"], r["count"] = row.offset, r["count"] + 1
        for place in ranges:
            self._next[place] += 1
        sequence = len(self.commits) + 1
        value = {
            "sequence": sequence, "kind": kind, "applied_lsn": self._lsn + 8, "transactions": self._inside, "rows": len(self._group), "prepared": self._prepared,
            "ranges": list(ranges.values()), "backfilling": [f"{PREFIX}.public.{table}" for table in loading],
        }  # fmt: skip
        self.commits.append(Record(f"{PREFIX}.commits", 0, sequence - 1, None, value))
        self.ends.append(ended(PREFIX, sequence, ranges))
        self.rows += self._group
        self._group, self._prepared, self._inside = [], [], 0

    def history(self) -> History:
        last = self.commits[-1].value
        progress = {"sequence": last["sequence"], "applied_lsn": last["applied_lsn"]}
        prepared = [p for commit in self.commits for p in commit.value["prepared"]]
        source: dict[str, list[dict[str, Any]]] = {
            table: [dict(row) for row in rows.values()] for table, rows in self.tables.items()
        }
        in_place = sorted(self.rows, key=lambda record: record.place)
        return History(
            prefix=PREFIX,
            journal=self.journal,
            rows=[record for record in in_place if not is_event(record)],
            commits=self.commits,
            progress=[Record(f"{PREFIX}.progress", 0, 0, "p", progress)],
            ledger=[
                Record(f"{PREFIX}.prepared", 0, n, p["id"], {"state": "committed"}) for n, p in enumerate(prepared)
            ],
            source={
                **source,
                "notes": [{"line": line} for line in self.notes],
                "marks": [{"id": name} for name in self.marks],
            },
            ends=self.ends,
            events=[record for record in in_place if is_event(record)],
        )


def ended(prefix: str, number: int, rows: Iterable[tuple[str, int]], *, record: bool = True) -> Ended:
    """A Kafka transaction that was committed: rows in these partitions, and, if so, the commit
    record and the progress.
    """
    records = {(f"{prefix}.commits", 0), (f"{prefix}.progress", 0)} if record else set()
    return Ended(f"{prefix}.main", 1, 0, number, frozenset(rows) | records)


def event(name: str, number: int, version: int) -> Op:
    """Of the table if its version is odd, else of a logical message."""
    value = json.dumps({"tx": name, "n": number, "version": version})
    headers = {"id": f"{name}-{number}", "type": f"version {version}"} if version % 2 else {}
    return event_op(name, number, ("changed", "audit")[version % 3 == 0], "1", version, value, headers)


def faultless() -> History:
    """A little of everything."""
    sample = Sample()
    for table in ("bank_a", "bank_b"):
        sample.seed(table, *({"id": n, "balance": 100} for n in range(3)))
    sample.seed("register", {"id": 1, "version": 0, "writer": None})
    sample.seed("docs", {"id": 1, "n": 0, "body": "b0"})
    sample.load("bank_a", "bank_b", "register", "docs")
    for n in range(1, 13):
        a, b = (sample.tables[table][n % 3]["balance"] for table in ("bank_a", "bank_b"))
        items = sample.tables.get("lists", {}).get(1, {}).get("items")
        ops: list[Op] = [
            ("bank_a", "u", {"id": n % 3}, {"id": n % 3, "balance": a - n}),
            ("bank_b", "u", {"id": n % 3}, {"id": n % 3, "balance": b + n}),
            ("register", "u", {"id": 1}, {"id": 1, "version": n, "writer": f"t{n}"}),
            ("lists", "u" if items else "c", {"id": 1}, {"id": 1, "items": f"{items} {n}" if items else f"{n}"}),
            ("docs", "u", {"id": 1}, {"id": 1, "n": n, "body": f"b{n // 2}"}),
            ("notes", "c", None, {"line": f"line {n}"}),
            ("messages", "m", None, {"content": f"said {n}"}),
        ]
        if n % 4 == 1:
            ops = [*ops, ("scratch", "t", None, None), ("scratch", "c", {"id": n}, {"id": n, "v": 0})]
        if n % 4 == 2:
            ops = [*ops, ("scratch", "d", {"id": n - 1}, None)]
        said = [] if n == 7 else [event(f"t{n}", 0, 2 * n), event(f"t{n}", 1, 2 * n + 1)]
        sample.transaction(f"t{n}", [*(ops if n != 7 else ops[:2]), *said], gid=f"g{n}" if n % 3 == 0 else None)
        if n == 7:  # its register was not changed
            sample.transaction("t7b", ops[2:])
        sample.transaction(f"r{n}", ops, told="rolled back")
        if n % 2 == 0:
            sample.commit()
    sample.load("register")
    sample.transaction("last", [("register", "u", {"id": 1}, {"id": 1, "version": 13, "writer": None})])
    sample.commit()
    return sample.history()
