"""The ledger: a table of the source into which triggers write, in the same transaction, what the
topics must show of each change; and the comparison with the topics.

Whatever becomes of a transaction becomes of its entries: what was rolled back has none. Entries of
one key are numbered under the key's row lock, so their order is the order of commits. The
comparison knows nothing of the connector but the topics' contract.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import psycopg

from helpers.connector.topics import Seen

TABLES = ("account", "transfer", "journal")

SCHEMA = """
CREATE TABLE account (id int PRIMARY KEY, version int NOT NULL, note text);
CREATE TABLE transfer (id text PRIMARY KEY, account int, amount bigint);
CREATE TABLE journal (line text);
CREATE TABLE unpublished (id bigserial PRIMARY KEY, filler text);
CREATE TABLE ledger (n bigserial PRIMARY KEY, xid bigint NOT NULL, tbl text NOT NULL, op text NOT NULL, key jsonb, after jsonb);

CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    x bigint := pg_current_xact_id()::text::bigint;
    old_key jsonb; new_key jsonb;
BEGIN
    IF TG_NARGS > 0 THEN
        IF TG_OP <> 'INSERT' THEN old_key := jsonb_build_object(TG_ARGV[0], to_jsonb(OLD) -> TG_ARGV[0]); END IF;
        IF TG_OP <> 'DELETE' THEN new_key := jsonb_build_object(TG_ARGV[0], to_jsonb(NEW) -> TG_ARGV[0]); END IF;
    END IF;
    IF TG_OP = 'DELETE' OR old_key <> new_key THEN
        INSERT INTO ledger (xid, tbl, op, key) VALUES (x, TG_TABLE_NAME, 'd', old_key);
    END IF;
    IF TG_OP <> 'DELETE' THEN
        INSERT INTO ledger (xid, tbl, op, key, after)
        VALUES (x, TG_TABLE_NAME, CASE WHEN old_key = new_key THEN 'u' ELSE 'c' END, new_key, to_jsonb(NEW));
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON account FOR EACH ROW EXECUTE FUNCTION note('id');
CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON transfer FOR EACH ROW EXECUTE FUNCTION note('id');
CREATE TRIGGER note AFTER INSERT ON journal FOR EACH ROW EXECUTE FUNCTION note();
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """A change that was committed in the source."""

    xid: int
    table: str
    op: str
    key: Any
    after: Any


def entries(connection: psycopg.Connection[Any]) -> list[Entry]:
    """All of them, in the order in which they were written."""
    rows = connection.execute("SELECT xid, tbl, op, key, after FROM ledger ORDER BY n").fetchall()
    return [Entry(*row) for row in rows]


@dataclass(frozen=True, slots=True)
class Topics:
    """What a read_committed reader has of one connector: everything, in the order of place."""

    prefix: str
    rows: Sequence[Seen]
    """Of the tables' topics and the messages topic."""
    commits: Sequence[Seen]
    progress: Sequence[Seen]
    prepared: Sequence[Seen]


def compare(topics: Topics, ledger: Sequence[Entry], *, in_doubt: Iterable[int] = ()) -> None:
    """Nothing lost, doubled, torn, out of order, nor there without having been committed.

    `in_doubt`: the xids that are prepared now.
    """
    changes = [s for s in topics.rows if s.value is not None]
    _contents(topics, changes, ledger)
    _order_of_keys(topics, changes, ledger)
    _tombstones(topics)
    _commit_records(topics)
    _ranges(topics)
    _whole_and_in_order(topics, changes)
    _commit_positions(changes)
    _bookkeeping(topics, set(in_doubt))


def _table(topics: Topics, seen: Seen) -> str:
    return seen.topic.removeprefix(f"{topics.prefix}.public.")


def _change(topics: Topics, seen: Seen) -> tuple[Any, ...]:
    if seen.topic == f"{topics.prefix}.messages":
        return "messages", "m", None, seen.value["message"]["content"].decode()
    after = seen.value["after"]
    return _table(topics, seen), seen.value["op"], _plain(seen.key), _plain(after)


def _plain(record: Any) -> Any:
    return None if record is None else tuple(sorted(record.items()))


def _expected(entry: Entry) -> tuple[Any, ...]:
    if entry.table == "messages":
        return "messages", "m", None, entry.after["content"]
    return entry.table, entry.op, _plain(entry.key), _plain(entry.after)


def _contents(topics: Topics, changes: Sequence[Seen], ledger: Sequence[Entry]) -> None:
    """Transaction by transaction, change by change, in the order within it."""
    found: dict[int, list[Seen]] = defaultdict(list)
    for seen in changes:
        found[seen.value["source"]["txId"]].append(seen)
    wanted: dict[int, list[Entry]] = defaultdict(list)
    for entry in ledger:
        wanted[entry.xid].append(entry)
    assert not (set(found) - set(wanted)), f"there, and never committed: {sorted(set(found) - set(wanted))}"
    assert not (set(wanted) - set(found)), f"lost: transactions {sorted(set(wanted) - set(found))}"
    for xid, expected in wanted.items():
        rows = sorted(found[xid], key=lambda s: s.value["transaction"]["total_order"])
        orders = [s.value["transaction"]["total_order"] for s in rows]
        assert orders == list(range(1, len(orders) + 1)), f"transaction {xid}: total_order is {orders}"
        assert [_change(topics, s) for s in rows] == [_expected(e) for e in expected], f"transaction {xid} differs"


def _order_of_keys(topics: Topics, changes: Sequence[Seen], ledger: Sequence[Entry]) -> None:
    found: dict[Any, list[Any]] = defaultdict(list)
    partitions: dict[Any, set[int]] = defaultdict(set)
    for seen in changes:
        if seen.key is not None and not isinstance(seen.key, str):
            name = _table(topics, seen), _plain(seen.key)
            found[name].append((seen.value["op"], _plain(seen.value["after"])))
            partitions[name].add(seen.partition)
    wanted: dict[Any, list[Any]] = defaultdict(list)
    for entry in ledger:
        if entry.key is not None:
            wanted[entry.table, _plain(entry.key)].append((entry.op, _plain(entry.after)))
    for name, expected in wanted.items():
        assert found[name] == expected, f"the order of {name} is not that of the commits"
    scattered = {name: where for name, where in partitions.items() if len(where) > 1}
    assert not scattered, f"keys in more than one partition: {scattered}"


def _tombstones(topics: Topics) -> None:
    """Behind every delete of a keyed table, and nowhere else."""
    last: dict[tuple[str, int], Seen] = {}
    for seen in topics.rows:
        before = last.get((seen.topic, seen.partition))
        follows = before is not None and before.value is not None and before.value.get("op") == "d"
        if seen.value is None:
            assert before is not None, f"a tombstone at {seen.place} without its delete"
            assert follows, f"a tombstone at {seen.place} without its delete"
            assert before.key == seen.key, f"the tombstone at {seen.place} is of another key"
        else:
            assert not follows, f"the delete before {seen.place} has no tombstone"
        last[seen.topic, seen.partition] = seen


def _commit_records(topics: Topics) -> None:
    records = [s.value for s in topics.commits]
    assert [r["sequence"] for r in records] == list(range(1, len(records) + 1)), "commit records are not dense"
    for before, after in pairwise(records):
        assert before["applied_lsn"] < after["applied_lsn"], "applied_lsn does not grow"


def _ranges(topics: Topics) -> None:
    """Each record lies in exactly one range, and each range holds as many records as it says."""
    rows: dict[tuple[str, int], list[int]] = defaultdict(list)
    for seen in topics.rows:
        rows[seen.topic, seen.partition].append(seen.offset)
    covered: Counter[tuple[str, int, int]] = Counter()
    for record in (s.value for s in topics.commits):
        counted = 0
        for r in record["ranges"]:
            held = [o for o in rows[r["topic"], r["partition"]] if r["first"] <= o <= r["last"]]
            assert len(held) == r["count"], f"commit {record['sequence']}: {len(held)} records in {r}"
            assert (held[0], held[-1]) == (r["first"], r["last"]), f"commit {record['sequence']}: {r} is too wide"
            covered.update((r["topic"], r["partition"], o) for o in held)
            counted += r["count"]
        assert counted == record["rows"], f"commit {record['sequence']} says {record['rows']} rows"
    assert set(covered) == {s.place for s in topics.rows}, "records outside of all ranges"
    assert max(covered.values(), default=1) == 1, "records in two ranges"


def _whole_and_in_order(topics: Topics, changes: Sequence[Seen]) -> None:
    """A source transaction lies in one Kafka transaction, and those follow the source's commits."""
    place_of = {
        (r["topic"], r["partition"], offset): s.value["sequence"]
        for s in topics.commits
        for r in s.value["ranges"]
        for offset in range(r["first"], r["last"] + 1)
    }
    inside: dict[int, set[tuple[int, str | None]]] = defaultdict(set)
    for seen in changes:
        transaction = seen.value["transaction"]
        inside[place_of[seen.place]].add((seen.value["source"]["txId"], transaction["id"]))
    homes = Counter(xid for transactions in inside.values() for xid, _ in transactions)
    assert not [x for x, n in homes.items() if n > 1], f"torn: {[x for x, n in homes.items() if n > 1]}"
    applied = 0
    for record in (s.value for s in topics.commits):
        sequence, transactions = record["sequence"], inside[record["sequence"]]
        assert len(transactions) == record["transactions"], (
            f"commit {sequence} says {record['transactions']} of {transactions}"
        )
        outcomes = {(p["xid"], p["id"]): p["commit_lsn"] for p in record["prepared"]}
        assert set(outcomes) <= transactions, f"commit {sequence} names prepared ones that are not in it"
        for xid, transaction_id in transactions:
            lsn = outcomes.get((xid, transaction_id)) or _lsn_of(transaction_id)
            assert applied <= lsn < record["applied_lsn"], f"commit {sequence}: {transaction_id} is not in its stretch"
        applied = record["applied_lsn"]


def _commit_positions(changes: Sequence[Seen]) -> None:
    """A row has its commit's position, unless it was encoded at PREPARE."""
    for seen in changes:
        source, transaction_id = seen.value["source"], seen.value["transaction"]["id"]
        expected = None if source["gid"] is not None else _lsn_of(transaction_id)
        assert source["commit_lsn"] == expected, f"{transaction_id} has commit_lsn {source['commit_lsn']}"


def _lsn_of(transaction_id: str | None) -> int:
    assert transaction_id is not None
    high, low = transaction_id.split(":")[1].split("/")
    return (int(high, 16) << 32) + int(low, 16)


def _bookkeeping(topics: Topics, in_doubt: set[int]) -> None:
    said = [s.value for s in topics.progress if "/" not in s.key]
    for before, after in pairwise(said):
        assert before["applied_lsn"] <= after["applied_lsn"], "progress went back"
        assert before["sequence"] <= after["sequence"], "the progress's sequence went back"
    if topics.commits:
        assert said[-1]["sequence"] == topics.commits[-1].value["sequence"]
        assert said[-1]["applied_lsn"] >= topics.commits[-1].value["applied_lsn"]
    entry_of = {s.key: s.value for s in topics.prepared}
    unresolved = {e["xid"] for e in entry_of.values() if e["state"] in {"open", "parked"}}
    assert unresolved <= in_doubt, f"the in-doubt ledger still has {sorted(unresolved - in_doubt)}"
    for s in topics.commits:
        for outcome in s.value["prepared"]:
            state = entry_of.get(outcome["id"], {"state": "committed"})["state"]
            assert state == "committed", f"the in-doubt ledger has {outcome['id']} as {state}"
