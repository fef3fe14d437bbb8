"""Puts a decoded stream together again, as simply as it can be done: whole transactions in commit
order, and the tables that they make.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from twofold.source import messages as m
from twofold.source.catalog import Catalog
from twofold_common.positions import PreparedIdentity

Named: TypeAlias = "dict[str, bytes | m.Unchanged | None]"


@dataclass(frozen=True)
class Change:
    """One line of a transaction. `old_whole`: `old` has all columns, not only the identity's."""

    what: str
    relation: m.Relation | None = None
    old: Named | None = None
    new: Named | None = None
    old_whole: bool = False
    content: str = ""


@dataclass
class Transaction:
    xid: int
    changes: list[tuple[int | None, Change]] = field(default_factory=list)
    relations: dict[int, m.Relation] = field(default_factory=dict)

    def take_back(self, subxid: int) -> None:
        self.changes = [(xid, change) for xid, change in self.changes if xid != subxid]


@dataclass
class Assembler:
    """Feed it messages; `committed` grows in commit order. Counts what it saw."""

    committed: list[Transaction] = field(default_factory=list)
    prepared: dict[PreparedIdentity, Transaction] = field(default_factory=dict)
    streamed: dict[int, Transaction] = field(default_factory=dict)
    relations: dict[int, m.Relation] = field(default_factory=dict)
    current: Transaction | None = None
    outside: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def feed(self, messages: Iterable[m.Message]) -> None:
        for message in messages:
            name = type(message).__name__
            self.counts[name] = self.counts.get(name, 0) + 1
            if not self._frame(message):
                self._change(message)

    def _frame(self, message: m.Message) -> bool:
        match message:
            case m.Begin(_, _, xid):
                self.current = Transaction(xid)
            case m.BeginPrepare(_, _, _, identity):
                self.current = Transaction(identity.xid)
            case m.Commit():
                self._commit(self._take_current())
            case m.Prepare(_, _, _, identity):
                self._prepare(identity, self._take_current())
            case m.StreamStart(xid, first):
                assert first == (xid not in self.streamed)
                self.current = self.streamed.setdefault(xid, Transaction(xid))
            case m.StreamStop():
                self._take_current()
            case m.StreamCommit(xid):
                self.relations |= self.streamed[xid].relations  # the server takes them as sent to all from here on
                self._commit(self.streamed.pop(xid))
            case m.StreamPrepare(_, _, _, identity):
                self._prepare(identity, self.streamed.pop(identity.xid))
            case m.StreamAbort(xid, subxid):
                self._abort(xid, subxid)
            case m.CommitPrepared(_, _, _, identity):
                self._commit(self.prepared.pop(identity))
            case m.RollbackPrepared(_, _, _, _, identity):
                self.prepared.pop(identity)
            case _:
                return False
        return True

    def _abort(self, xid: int, subxid: int) -> None:
        if xid == subxid:
            self.streamed.pop(xid)
        else:
            self.streamed[xid].take_back(subxid)

    def _take_current(self) -> Transaction:
        assert self.current is not None
        transaction, self.current = self.current, None
        return transaction

    def _prepare(self, identity: PreparedIdentity, transaction: Transaction) -> None:
        assert identity not in self.prepared
        self.prepared[identity] = transaction

    def _commit(self, transaction: Transaction) -> None:
        if transaction.changes:
            self.committed.append(transaction)

    def _change(self, message: m.Message) -> None:
        if isinstance(message, m.Relation):
            self._note(message)
        elif isinstance(message, m.Insert | m.Update | m.Delete):
            self._add(message.xid, self._row_change(message))
        elif isinstance(message, m.Truncate):
            for oid in message.relations:
                self._add(message.xid, Change("TRUNCATE", self._relation(oid)))
        elif isinstance(message, m.LogicalMessage):
            if message.transactional:
                self._add(message.xid, Change("MESSAGE", content=message.content.hex()))
            else:
                self.outside.append(message.content.hex())

    def _note(self, relation: m.Relation) -> None:
        scope = self.relations if relation.xid is None or self.current is None else self.current.relations
        scope[relation.oid] = replace(relation, xid=None)

    def _relation(self, oid: int) -> m.Relation:
        assert self.current is not None
        return self.current.relations.get(oid) or self.relations[oid]

    def _add(self, xid: int | None, change: Change) -> None:
        assert self.current is not None
        self.current.changes.append((xid, change))

    def _row_change(self, message: m.Insert | m.Update | m.Delete) -> Change:
        relation = self._relation(message.relation)
        if isinstance(message, m.Insert):
            return Change("INSERT", relation, None, named(relation, message.new))
        whole = message.old is not None
        before = message.old if message.old is not None else message.key
        old = named(relation, before) if before is not None else None
        if isinstance(message, m.Delete):
            return Change("DELETE", relation, old, None, whole)
        return Change("UPDATE", relation, old, named(relation, message.new), whole)


def named(relation: m.Relation, row: m.Row) -> Named:
    assert len(row) == len(relation.columns)
    return {
        column.name: value.data if isinstance(value, m.Text | m.Binary) else value
        for column, value in zip(relation.columns, row, strict=True)
    }


@dataclass
class Mirror:
    """The tables as the committed transactions leave them.

    Rows are found by their key, or where there is none by all that they are, among those of the
    same `k`.
    """

    catalog: Catalog
    keys: dict[m.Relation, tuple[str, ...]] = field(default_factory=dict)
    tables: dict[str, dict[object, list[Named]]] = field(default_factory=dict)

    def rows(self, table: str) -> list[Named]:
        return [row for rows in self.tables.get(table, {}).values() for row in rows]

    def apply(self, change: Change) -> None:
        if change.relation is None:
            return
        table = self.tables.setdefault(change.relation.table, {})
        if change.what == "TRUNCATE":
            table.clear()
            return
        before = None if change.what == "INSERT" else self._remove(table, change)
        if change.new is not None:
            known = {**(before or {}), **(change.old if change.old_whole and change.old else {})}
            row = {n: known[n] if isinstance(v, m.Unchanged) else v for n, v in change.new.items()}
            assert not any(isinstance(v, m.Unchanged) for v in row.values())
            table.setdefault(row["k"], []).append(row)

    def key(self, relation: m.Relation) -> tuple[str, ...]:
        if relation not in self.keys:
            self.keys[relation] = tuple(column.name for column in self.catalog.shape(relation).key)
        return self.keys[relation]

    def _remove(self, table: dict[object, list[Named]], change: Change) -> Named:
        assert change.relation is not None
        looked_for = change.old if change.old is not None else change.new
        assert looked_for is not None
        names = self.key(change.relation) or tuple(looked_for)
        rows = table.get(looked_for["k"], [])
        for number, row in enumerate(rows):
            if all(row.get(name) == looked_for[name] for name in names):
                return rows.pop(number)
        raise AssertionError(f"{change.what} of a row that is not there: {names}")
