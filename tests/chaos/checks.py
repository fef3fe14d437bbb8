"""The checks: pure functions from a history (topics, journals, the source at the end) to the
violations in it.

They know the topics' public contract and nothing of the product. Each violation carries the
smallest piece of history that shows it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from chaos.ends import Ended, parted
from chaos.events import check_events
from chaos.journal import Journal, Op
from chaos.reading import Record
from chaos.violation import SHOWN, Violation, show

Key = tuple[tuple[str, Any], ...]
Row = dict[str, Any]

BANKS: Final = ("bank_a", "bank_b")
KEYLESS: Final = "notes"


@dataclass(frozen=True, slots=True)
class History:
    """Everything that is compared."""

    prefix: str
    journal: Journal
    rows: Sequence[Record]
    """Of the tables' topics and the messages topic, in the order of place."""
    commits: Sequence[Record]
    progress: Sequence[Record]
    ledger: Sequence[Record]
    source: Mapping[str, Sequence[Mapping[str, Any]]]
    """Tables as they are at the end, `marks` among them."""
    ends: Sequence[Ended] = ()
    """The Kafka transactions that were committed."""
    events: Sequence[Record] = ()
    """Of the outbox's topics, in the order of place."""

    def table(self, topic: str) -> str:
        rest = topic.removeprefix(f"{self.prefix}.")
        return rest.removeprefix("public.")


@dataclass(slots=True)
class Transaction:
    """A source transaction as the topics show it."""

    id: str
    rows: list[Record] = field(default_factory=list)
    commits: set[int] = field(default_factory=set)
    """Sequence numbers of the commit records whose ranges hold its rows."""
    keyed: set[int] = field(default_factory=set)
    """The same of its rows that have a key."""
    excused: bool = False
    """A keyless table was being loaded: its rows may come with the load."""
    pairs: list[tuple[Record, Op]] = field(default_factory=list)
    """Its rows and what the journal says of each, as far as both go."""

    @property
    def mark(self) -> str | None:
        for row in self.rows:
            if row.topic.endswith(".public.marks") and row.value["after"]:
                return str(row.value["after"]["id"])
        return None


def check(history: History) -> list[Violation]:
    """All that is wrong."""
    home = {
        (r["topic"], r["partition"], offset): commit.value["sequence"]
        for commit in history.commits
        for r in commit.value["ranges"]
        for offset in range(r["first"], r["last"] + 1)
    }
    transactions = _transactions(history, home)
    return [
        *_commit_records(history),
        *_ranges(history),
        *_exactly_once(history, transactions),
        *_whole(transactions),
        *(Violation("split", what) for what in parted(history.prefix, history.ends, len(history.commits))),
        *_in_stretches(history, transactions),
        *_in_order(history),
        *check_events(
            history.events,
            history.journal.entries,
            _committed(history),
            home,
            {each.mark: each.keyed for each in transactions.values() if each.mark is not None},
        ),
        *_tombstones(history),
        *_bookkeeping(history),
        *Fold(
            history,
            home,
            transactions,
            {p["id"]: p["commit_lsn"] for c in history.commits for p in c.value["prepared"]},
        ).run(),
    ]


def exactly_once(history: History) -> list[Violation]:
    """Of topics without commit records: transactions against the journals, and the versions of each
    register.
    """
    found = list(_exactly_once(history, _transactions(history, {})))
    last: dict[Key, Record] = {}
    for record in history.rows:
        if history.table(record.topic) == "register" and record.value and record.value["after"]:
            key = _plain(record.key)
            if key in last and record.value["after"]["version"] != last[key].value["after"]["version"] + 1:
                found.append(Violation("order", f"register {record.key}", show([last[key], record])))
            last[key] = record
    return found


def _transactions(history: History, home: Mapping[tuple[str, int, int], int]) -> dict[str, Transaction]:
    loads = {c.value["sequence"] for c in history.commits if f"{history.prefix}.public.{KEYLESS}" in c.value["backfilling"]}  # fmt: skip
    found: dict[str, Transaction] = {}
    for record in history.rows:
        inside = record.value and record.value.get("transaction")
        if inside:
            each = found.setdefault(inside["id"], Transaction(inside["id"]))
            each.rows.append(record)
            if record.place in home:
                number = home[record.place]
                each.commits.add(number)
                each.excused |= number in loads
                if history.table(record.topic) != KEYLESS:
                    each.keyed.add(number)
    return found


def _commit_records(history: History) -> Iterator[Violation]:
    numbers = [commit.value["sequence"] for commit in history.commits]
    if numbers != list(range(1, len(numbers) + 1)):
        bad = [(a, b) for a, b in pairwise([0, *numbers]) if b != a + 1]
        yield Violation("commit records", f"sequence numbers are not dense: {bad[:5]}")
    for before, after in pairwise(history.commits):
        first, second = before.value, after.value
        # A chunk of a backfill has no transaction, so it need not move the position.
        grows = first["applied_lsn"] < second["applied_lsn"] or (
            second["kind"] in {"backfill", "reload"} and first["applied_lsn"] == second["applied_lsn"]
        )
        if not grows:
            yield Violation("commit records", f"applied_lsn does not grow from {first['sequence']} to {second['sequence']}", show([before, after]))  # fmt: skip


def _ranges(history: History) -> Iterator[Violation]:
    """Each record lies in exactly one range, and each range holds as many as it says."""
    offsets: dict[tuple[str, int], list[int]] = defaultdict(list)
    for record in (*history.rows, *history.events):
        offsets[record.topic, record.partition].append(record.offset)
    covered: Counter[tuple[str, int, int]] = Counter()
    for commit in history.commits:
        value, counted = commit.value, 0
        for r in value["ranges"]:
            there = offsets[r["topic"], r["partition"]]
            held = there[bisect_left(there, r["first"]) : bisect_right(there, r["last"])]
            counted += r["count"]
            covered.update((r["topic"], r["partition"], o) for o in held)
            if len(held) != r["count"] or (held and (held[0], held[-1]) != (r["first"], r["last"])):
                yield Violation("ranges", f"commit record {value['sequence']} says {r}, there are {len(held)} records from {held[:1]} to {held[-1:]}")  # fmt: skip
        if counted != value["rows"]:
            yield Violation("ranges", f"commit record {value['sequence']} says {value['rows']} rows, its ranges {counted}")  # fmt: skip
    outside = [record for record in (*history.rows, *history.events) if not covered[record.place]]
    if outside:
        yield Violation("ranges", f"{len(outside)} records lie in no range of a commit record", show(outside))
    if twice := [place for place, times in covered.items() if times > 1]:
        yield Violation("ranges", f"{len(twice)} records lie in two ranges: {twice[:3]}")


def _exactly_once(history: History, transactions: Mapping[str, Transaction]) -> Iterator[Violation]:
    committed = _committed(history)
    entries = history.journal.entries
    by_mark: dict[str, list[Transaction]] = defaultdict(list)
    for each in transactions.values():
        mark = each.mark
        if mark is None:
            yield Violation("torn", f"transaction {each.id} is there without the row that every transaction has", show(each.rows))  # fmt: skip
        else:
            by_mark[mark].append(each)
    yield from _told(history.journal, committed)
    for name in committed & set(entries):
        if not by_mark[name]:
            yield Violation("lost", f"transaction {name}, committed in the source, is not there", tuple(map(str, entries[name].ops[:SHOWN])))  # fmt: skip
    partitions = Counter(topic for topic, _ in {(row.topic, row.partition) for row in history.rows})
    for name, found in by_mark.items():
        if len(found) > 1:
            yield Violation("doubled", f"transaction {name} is there {len(found)} times", show(r for t in found for r in t.rows))  # fmt: skip
        if name not in committed and found:
            yield Violation("rolled back", f"transaction {name} is visible and was never committed", show(found[0].rows))  # fmt: skip
        elif found and name in entries:
            yield from _same(history, found[0], entries[name].rows, partitions)


def _committed(history: History) -> set[str]:
    """The names of the transactions that the source has committed."""
    return {str(row["id"]) for row in history.source["marks"]}


def _told(journal: Journal, committed: Set[str]) -> Iterator[Violation]:
    """Between clients and source alone: should the source itself break its word, nobody behind it
    is to blame.
    """
    for mark in sorted(committed - set(journal.entries)):
        yield Violation("journal", f"the source has {mark}, which no client wrote")
    for name, entry in journal.entries.items():
        if entry.told == "committed" and name not in committed and entry.ops:
            yield Violation("source", f"{name} was told that it is committed, and the source does not have it")
        if entry.told == "rolled back" and name in committed:
            yield Violation("source", f"{name} was told that it is rolled back, and the source has it")


def _same(
    history: History, transaction: Transaction, ops: Sequence[Op], partitions: Mapping[str, int]
) -> Iterator[Violation]:
    """Row by row, in the transaction's own order.

    Rows of a keyless table whose load is under way may come with the load instead.
    """
    yield from _truncates(transaction, partitions)
    seen = _changes(transaction)
    orders = [row.value["transaction"]["total_order"] for row in seen]
    if len(set(orders)) < len(orders):
        yield Violation("doubled", f"transaction {transaction.id}: total_order {orders[:20]}", show(_repeated(seen)))
    if transaction.excused:
        seen = [row for row in seen if history.table(row.topic) != KEYLESS]
        ops = [op for op in ops if op[0] != KEYLESS]
    transaction.pairs = list(zip(seen, ops, strict=False))
    for row, op in transaction.pairs:
        if not _fits(history, row, op):
            yield Violation("differs", f"transaction {transaction.id} shows another row than {str(op)[:200]}", show([row]))  # fmt: skip
            break
    if len(seen) < len(ops):
        yield Violation("lost", f"transaction {transaction.id} has {len(seen)} rows of {len(ops)}", show(seen))
    if len(seen) > len(ops):
        yield Violation("doubled", f"transaction {transaction.id} has {len(seen)} rows, not {len(ops)}", show(seen))


def _changes(transaction: Transaction) -> list[Record]:
    """In the transaction's own order; a truncate, which is in every partition, once."""
    seen: dict[tuple[str, int, int], Record] = {}
    for row in sorted(transaction.rows, key=lambda r: (r.value["transaction"]["total_order"], r.place)):
        order = row.value["transaction"]["total_order"]
        seen.setdefault((row.topic, order, -1) if row.value["op"] == "t" else row.place, row)
    return list(seen.values())


def _truncates(transaction: Transaction, partitions: Mapping[str, int]) -> Iterator[Violation]:
    found: dict[tuple[str, int], list[Record]] = defaultdict(list)
    for row in transaction.rows:
        if row.value["op"] == "t":
            found[row.topic, row.value["transaction"]["total_order"]].append(row)
    for (topic, _), rows in found.items():
        where = {row.partition for row in rows}
        if len(where) < partitions[topic]:
            yield Violation("torn", f"transaction {transaction.id}: its truncate is in {len(where)} of {partitions[topic]} partitions of {topic}", show(rows))  # fmt: skip
        if len(where) < len(rows):
            yield Violation("doubled", f"transaction {transaction.id}: a truncate twice in a partition", show(rows))


def _repeated(rows: Sequence[Record]) -> list[Record]:
    times = Counter(row.value["transaction"]["total_order"] for row in rows)
    return [row for row in rows if times[row.value["transaction"]["total_order"]] > 1]


def _fits(history: History, record: Record, op: Op) -> bool:
    table, kind, key, row = op
    value = record.value
    if history.table(record.topic) != table or value["op"] != kind:
        return False
    if kind == "m":
        assert row is not None
        return bool(value["message"]["content"].decode() == row["content"])
    if (record.key or None) != (key or None):
        return False
    after, unchanged = value["after"], value["unchanged"]
    if row is None or after is None:
        return bool(row is None and after is None)
    return after.keys() == row.keys() and all(after[c] == row[c] or c in unchanged for c in row)


def _whole(transactions: Mapping[str, Transaction]) -> Iterator[Violation]:
    """A source transaction lies in one Kafka transaction; but rows that a keyless table's load
    brought.
    """
    for each in transactions.values():
        if len(each.keyed if each.excused else each.commits) > 1:
            yield Violation("torn", f"transaction {each.id} lies in the commit records {sorted(each.commits)}", show(each.rows))  # fmt: skip


def _positions(history: History) -> Callable[[str], int]:
    """Where a transaction was committed: a prepared one says so in its commit record."""
    outcome = {p["id"]: int(p["commit_lsn"]) for commit in history.commits for p in commit.value["prepared"]}
    return lambda name: outcome.get(name) or _lsn(name)


def _in_stretches(history: History, transactions: Mapping[str, Transaction]) -> Iterator[Violation]:
    """Kafka transactions follow the source's commits: each has exactly those of its stretch."""
    position = _positions(history)
    inside: dict[int, set[str]] = defaultdict(set)
    for each in transactions.values():
        for number in each.commits:
            inside[number].add(each.id)
    applied = 0
    for commit in history.commits:
        value, names = commit.value, inside[commit.value["sequence"]]
        if value["kind"] in {"batch", "prepared"}:
            if len(names) != value["transactions"]:
                yield Violation("commit records", f"commit record {value['sequence']} says {value['transactions']} transactions, there are {len(names)}", show([commit]))  # fmt: skip
            for name in names:
                if not applied <= position(name) < value["applied_lsn"]:
                    yield Violation("order", f"transaction {name} ({position(name)}) does not lie in the stretch of commit record {value['sequence']}, {applied} to {value['applied_lsn']}", show([commit]))  # fmt: skip
        if missing := {p["id"] for p in value["prepared"]} - names:
            yield Violation("torn", f"commit record {value['sequence']} names {sorted(missing)[:3]}, whose rows are not in its ranges")  # fmt: skip
        applied = value["applied_lsn"]


def _in_order(history: History) -> Iterator[Violation]:
    """Of each key rows follow the source's commits, and within a transaction its order.

    Of different keys they need not: what was prepared is written before it is committed.
    """
    position = _positions(history)
    last: dict[tuple[str, Key], tuple[int, int, Record]] = {}
    for record in history.rows:
        inside = record.value and record.value.get("transaction")
        if not inside or not isinstance(record.key, dict):
            continue
        row, turn = (record.topic, _plain(record.key)), (position(inside["id"]), inside["total_order"])
        if row in last and turn <= last[row][:2]:
            yield Violation("order", f"{inside['id']} ({turn}) lies behind {last[row][:2]}", show([last[row][2], record]))  # fmt: skip
        last[row] = (*turn, record)


def _lsn(transaction: str) -> int:
    high, low = transaction.split(":")[1].split("/")
    return (int(high, 16) << 32) + int(low, 16)


def _tombstones(history: History) -> Iterator[Violation]:
    """Behind every delete of a keyed table, and nowhere else."""
    for before, after in pairwise([*history.rows, None]):
        assert before is not None
        neighbour = after is not None and (after.topic, after.partition) == (before.topic, before.partition)
        is_delete = before.value is not None and before.value.get("op") == "d"
        followed = neighbour and after is not None and after.value is None
        if is_delete and not (followed and after is not None and after.key == before.key):
            yield Violation("lost", "a delete without its tombstone", show([before]))
        if followed and not is_delete:
            assert after is not None
            yield Violation("doubled", "a tombstone without its delete", show([before, after]))


def _bookkeeping(history: History) -> Iterator[Violation]:
    said = [record for record in history.progress if "/" not in record.key]
    for before, after in pairwise(said):
        for name in ("applied_lsn", "sequence"):
            if before.value[name] > after.value[name]:
                yield Violation("progress", f"{name} went back", show([before, after]))
    if said and history.commits:
        last, commit = said[-1].value, history.commits[-1].value
        if last["sequence"] != commit["sequence"] or last["applied_lsn"] < commit["applied_lsn"]:
            yield Violation("progress", f"it ends at {last['sequence']}, the commit records at {commit['sequence']}", show([said[-1]]))  # fmt: skip
    entries = {record.key: record for record in history.ledger}
    for record in entries.values():
        if record.value and record.value["state"] in {"open", "parked"}:
            yield Violation("ledger", "a transaction that has ended is still in doubt", show([record]))
    for commit in history.commits:
        for prepared in commit.value["prepared"]:
            entry = entries.get(prepared["id"])
            if entry is not None and entry.value and entry.value["state"] != "committed":
                yield Violation("ledger", f"commit record {commit.value['sequence']} has committed it", show([entry]))


class Fold:
    """A consumer that keeps every table's rows by key, commit record by commit record, beside what
    the journals say that the rows are.
    """

    def __init__(
        self,
        history: History,
        home: Mapping[tuple[str, int, int], int],
        transactions: Mapping[str, Transaction],
        outcome: Mapping[str, int],
    ) -> None:
        self._history = history
        self._rows: dict[int, list[Record]] = defaultdict(list)
        for record in history.rows:
            if record.value is not None and record.topic != f"{history.prefix}.messages":
                self._rows[home.get(record.place, -1)].append(record)
        for rows in self._rows.values():
            rows.sort(key=lambda r: _turn(r, outcome))
        self._op = {row.place: op for each in transactions.values() for row, op in each.pairs}
        self._mirror: dict[str, dict[Key, Row]] = defaultdict(dict)
        self._truth: dict[str, dict[Key, Row]] = defaultdict(dict)
        self._left: dict[Key, Row] = {}
        """Documents by the keys that they had before."""
        self._lines: Counter[str] = Counter()
        self._partition: dict[tuple[str, Key], int] = {}
        for table, key, row in history.journal.seed:
            if key:
                self._truth[table][_plain(key)] = row
        self._total = sum(row["balance"] for table in BANKS for row in self._truth[table].values())

    def run(self) -> Iterator[Violation]:
        """Bank total at every commit record, versions that grow by one, lists that only grow, loads
        that fit, and at the end the source itself.
        """
        for commit in self._history.commits:
            value = commit.value
            for record in self._rows[value["sequence"]]:
                yield from self._take(record)
            loading = {self._history.table(topic) for topic in value["backfilling"]}
            if not loading & set(BANKS):
                total = sum(row["balance"] for table in BANKS for row in self._mirror[table].values())
                if total != self._total:
                    shown = (r for r in self._rows[value["sequence"]] if self._history.table(r.topic) in BANKS)
                    yield Violation("bank", f"at commit record {value['sequence']} the bank has {total}, not {self._total}", show([commit, *shown]))  # fmt: skip
                    return
        yield from self._compare()

    def _take(self, record: Record) -> Iterator[Violation]:
        table, value = self._history.table(record.topic), record.value
        if value["op"] == "t":
            self._truncate(table, record)
            return
        if not record.key:
            self._lines[value["after"]["line"]] += 1
            return
        key = _plain(record.key)
        if self._partition.setdefault((table, key), record.partition) != record.partition:
            yield Violation("order", f"{table} {record.key} lies in two partitions", show([record]))
        mirror, truth = self._mirror[table], self._truth[table]
        if value["op"] == "d":
            if table == "docs" and key in mirror:
                self._left[key] = mirror[key]
            mirror.pop(key, None)
            truth.pop(key, None)
            return
        old = truth.get(key)
        if value["op"] == "r":
            if old is None:
                yield Violation("order", f"{table} {record.key}: a row was loaded that was not there", show([record]))
        else:
            op = self._op.get(record.place)
            truth[key] = (op and op[3]) or {}
            yield from self._grows(table, record, old, truth[key])
        mirror[key] = self._with_unchanged(key, value, mirror.get(key))
        wanted = truth.get(key, {})
        if any(mirror[key][c] != wanted[c] for c in mirror[key].keys() & wanted.keys()):
            yield Violation("order", f"{table} {record.key}: a consumer has {str(mirror[key])[:200]}, the row was {str(wanted)[:200]}", show([record]))  # fmt: skip

    def _with_unchanged(self, key: Key, value: Mapping[str, Any], there: Row | None) -> Row:
        """Large values that were not sent: from the row as it was, under its old key if that has
        changed. Not there yet while a table is loaded: then the load brings it.
        """
        row = dict(value["after"])
        if value["unchanged"]:
            moved = value["op"] == "c" and value["before"]
            before = self._left.get(_plain(value["before"])) if moved else there
            for column in value["unchanged"]:
                del row[column]
                if before and column in before:
                    row[column] = before[column]
        return row

    @staticmethod
    def _grows(table: str, record: Record, old: Row | None, new: Row) -> Iterator[Violation]:
        before, after = (old or {}).get("version"), new.get("version")
        if table == "register" and (before is None or after != before + 1):
            yield Violation("order", f"register {record.key}: {new} after {old}", show([record]))
        if table == "lists" and record.value["op"] == "u" and (not old or new.get("items", "").rpartition(" ")[0] != old.get("items")):  # fmt: skip
            yield Violation("order", f"lists {record.key}: not what was there and one item more", show([record]))

    def _truncate(self, table: str, record: Record) -> None:
        """In each partition. That of a load has no transaction: what was there is to come again."""
        if table == KEYLESS:
            self._lines.clear()
        tables = [self._mirror[table], *([self._truth[table]] if record.value["transaction"] else [])]
        for rows in tables:
            for key in [k for k in rows if self._partition.get((table, k), record.partition) == record.partition]:
                del rows[key]

    def _compare(self) -> Iterator[Violation]:
        """With the source, which nobody writes any more."""
        for table, rows in self._history.source.items():
            if table == KEYLESS:
                lines = Counter(str(row["line"]) for row in rows)
                if lines != self._lines:
                    yield Violation("final", f"{table}: lost {list((lines - self._lines).items())[:3]}, too many {list((self._lines - lines).items())[:3]}")  # fmt: skip
                continue
            mirror, wanted = self._mirror[table], {_plain({"id": row["id"]}): row for row in rows}
            if missing := wanted.keys() - mirror.keys():
                yield Violation("final", f"{table} lacks {len(missing)} rows: {sorted(missing)[:3]}")
            if more := mirror.keys() - wanted.keys():
                yield Violation("final", f"{table} has {len(more)} rows that the source has not: {sorted(more)[:3]}")
            for key in wanted.keys() & mirror.keys():
                if any(mirror[key].get(column) != value for column, value in wanted[key].items()):
                    yield Violation("final", f"{table} {key} is {str(mirror[key])[:150]} and not {str(wanted[key])[:150]}")  # fmt: skip
                    break


def _turn(record: Record, outcome: Mapping[str, int]) -> tuple[int, int, int]:
    """Its place among its commit record's rows, over all partitions."""
    inside = record.value["transaction"]
    if not inside:
        return 0, 0, record.offset
    return outcome.get(inside["id"]) or _lsn(inside["id"]), inside["total_order"], record.offset


def _plain(key: Mapping[str, Any]) -> Key:
    return tuple(sorted(key.items()))
