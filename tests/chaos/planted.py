"""Violations planted into a history that has none: each kind must be found. What a broken connector
would also get wrong beside it (ranges, counts) is told as a broken connector would tell it, so that
the check that the violation is named after has to find it by itself.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

from chaos.draft import Draft, transaction_of
from chaos.events import is_event
from chaos.reading import Record

Plant = Callable[[Draft], None]


def a_lost_row(draft: Draft) -> None:
    sequence, rows = draft.transaction()
    draft.drop(sequence, [next(row for row in rows if not row.topic.endswith(".marks"))])


def a_lost_transaction(draft: Draft) -> None:
    sequence, rows = draft.transaction()
    draft.drop(sequence, rows)


def a_doubled_row(draft: Draft) -> None:
    sequence, rows = draft.transaction()
    draft.home[sequence].append(draft.rng.choice(rows))


def every_first_row_doubled(draft: Draft) -> None:
    """So what the checker takes for a row's original is that of another, perhaps of another table;
    it goes on.
    """
    for rows in draft.home.values():
        firsts = {transaction_of(row): row for row in reversed(rows) if transaction_of(row)}
        rows[:0] = firsts.values()


def a_doubled_transaction(draft: Draft) -> None:
    """Again in the next commit record, as after a restart that forgot."""
    sequence, rows = draft.transaction()
    draft.home[min(sequence + 1, len(draft.commits))] += rows


def a_torn_transaction(draft: Draft) -> None:
    """One half in the next Kafka transaction."""
    sequence, rows = draft.transaction()
    half = rows[: len(rows) // 2]
    draft.drop(sequence, half)
    other = sequence + 1 if sequence < len(draft.commits) else sequence - 1
    draft.home[other] = half + draft.home[other]


def a_transaction_without_its_mark(draft: Draft) -> None:
    """Its row of one table is there and that of the other is not."""
    sequence, rows = draft.transaction()
    draft.drop(sequence, [row for row in rows if row.topic.endswith(".marks")])


def all_transactions_without_their_marks(draft: Draft) -> None:
    """So nobody knows what a row should be; the checker goes on."""
    for sequence, mark in draft.rows("marks", "c"):
        draft.drop(sequence, [mark])


def a_wrong_order_of_a_key(draft: Draft) -> None:
    """Two versions of a register change places, each in the other's transaction."""
    by_key: dict[str, list[tuple[int, Record]]] = defaultdict(list)
    for sequence, row in draft.rows("register", "u"):
        by_key[str(row.key)].append((sequence, row))
    (_, first), (_, second) = next(v for v in by_key.values() if len(v) > 1)[:2]
    swap = {id(first): replace(first, value=second.value), id(second): replace(second, value=first.value)}
    for sequence, rows in draft.home.items():
        draft.home[sequence] = [swap.get(id(row), row) for row in rows]


def a_wrong_order_of_transactions(draft: Draft) -> None:
    """Two Kafka transactions were committed in the wrong order."""
    plain = [c["sequence"] for c in draft.commits if c["kind"] == "batch" and draft.home[c["sequence"]]]
    first, second = next((a, b) for a, b in pairwise(plain) if b == a + 1)
    draft.home[first], draft.home[second] = draft.home[second], draft.home[first]


def a_rolled_back_transaction(draft: Draft, rows: Sequence[Record] = ()) -> None:
    """The source has it not, its client was told so, and it is visible."""
    rows = rows or draft.transaction()[1]
    name = next(row.value["after"]["id"] for row in rows if row.topic.endswith(".marks"))
    draft.journal.entries[name].told = "rolled back"
    draft.source["marks"] = [row for row in draft.source["marks"] if row["id"] != name]


def money_out_of_nothing(draft: Draft) -> None:
    """Even if the client's journal and the source agreed.

    In the last row of an account, so that it stays until no bank is being loaded and its total says
    something.
    """
    last = {str(row.key): (sequence, row) for sequence, row in draft.rows("bank_a")}
    sequence, row = max(last.values(), key=lambda each: each[0])
    was = row.value["after"]
    richer = {**was, "balance": was["balance"] + 1}
    changed = replace(row, value={**row.value, "after": richer})
    draft.home[sequence] = [changed if other is row else other for other in draft.home[sequence]]
    for entry in draft.journal.entries.values():
        entry.ops = [("bank_a", op[1], op[2], richer) if op[0] == "bank_a" and op[3] == was else op for op in entry.ops]
    draft.source["bank_a"] = [richer if other["id"] == was["id"] else other for other in draft.source["bank_a"]]


def a_changed_value(draft: Draft) -> None:
    sequence, row = draft.rng.choice(draft.rows("lists"))
    other = {**row.value, "after": {**row.value["after"], "items": row.value["after"]["items"] + "!"}} if row.value["after"] else {**row.value, "op": "u"}  # fmt: skip
    draft.home[sequence] = [replace(row, value=other) if each is row else each for each in draft.home[sequence]]


def a_lost_tombstone(draft: Draft) -> None:
    sequence, at = next((n, i) for n, rows in draft.home.items() for i, row in enumerate(rows) if row.value is None)
    del draft.home[sequence][at]


def a_truncate_in_one_partition(draft: Draft) -> None:
    sequence, row = draft.rows("scratch", "t")[-1]
    draft.drop(sequence, [row])


def a_load_of_an_older_row(draft: Draft) -> None:
    """A chunk that took the place of a change made after its snapshot."""
    sequence, row = draft.rows("register", "r")[-1]
    older = {**row.value, "after": {**row.value["after"], "version": row.value["after"]["version"] - 1}}
    draft.home[sequence] = [replace(row, value=older) if each is row else each for each in draft.home[sequence]]


def a_lost_line_without_key(draft: Draft) -> None:
    sequence, row = draft.rng.choice(draft.rows("notes"))
    draft.drop(sequence, [row])


def a_missing_commit_record(draft: Draft) -> None:
    """Its rows are there, and nothing says so."""
    at = len(draft.commits) // 2
    gone = draft.commits[at]["sequence"]
    draft.commits[at]["sequence"] = gone + 1_000_000
    draft.home[gone + 1_000_000] = draft.home.pop(gone)


def a_position_that_goes_back(draft: Draft) -> None:
    at = len(draft.commits) // 2
    draft.commits[at]["applied_lsn"] = draft.commits[at - 1]["applied_lsn"] - 8


def progress_that_goes_back(draft: Draft) -> None:
    last = draft.progress[-1]
    draft.progress.append(replace(last, offset=last.offset + 1, value={**last.value, "sequence": last.value["sequence"] - 1}))  # fmt: skip


def a_doubt_that_does_not_end(draft: Draft) -> None:
    last = draft.ledger[-1]
    draft.ledger.append(replace(last, offset=last.offset + 1, value={**last.value, "state": "open"}))


def a_source_that_differs(draft: Draft) -> None:
    draft.source["docs"][0]["n"] += 1


def a_lost_one_of_a_late_abort(draft: Draft) -> None:
    """Its rows were aborted behind its commit record's back, which still names where they were."""
    sequence, rows = draft.transaction()
    draft.hidden += [row for row in draft.home[sequence] if transaction_of(row) == transaction_of(rows[0])]


def a_dirty_one_of_a_late_commit(draft: Draft) -> None:
    """Its rows came into sight while it was in doubt, in no commit record; then it was rolled
    back.
    """
    sequence, rows = draft.transaction()
    a_rolled_back_transaction(draft, rows)
    draft.drop(sequence, rows)
    draft.unsaid[sequence] = rows


def a_doubled_one_of_a_late_commit(draft: Draft) -> None:
    """Its rows came into sight in no commit record; recovery published them again."""
    sequence, rows = draft.transaction()
    draft.unsaid[sequence] = rows


def a_split_one_of_a_late_commit(draft: Draft) -> None:
    """Its rows came into sight, and later, in a Kafka transaction of its own, the commit record
    that names them.
    """
    draft.split.add(draft.transaction()[0])


def a_prepared_one_in_sight_while_in_doubt(draft: Draft) -> None:
    """The same of a prepared one, before its COMMIT PREPARED."""
    draft.split.add(next(commit["sequence"] for commit in draft.commits if commit["prepared"]))


def a_lost_event(draft: Draft) -> None:
    sequence, event = draft.event()
    draft.drop(sequence, [event])


def a_doubled_event(draft: Draft) -> None:
    """Beside itself, as after a retry that the broker did not notice."""
    sequence, event = draft.event()
    draft.home[sequence].append(event)


def a_doubled_event_of_a_restart(draft: Draft) -> None:
    """Again in another Kafka transaction; its transaction's rows were not sent again."""
    sequence, event = draft.event()
    draft.home[_other(draft, sequence)].append(event)


def two_events_of_a_key_exchanged(draft: Draft) -> None:
    """Neighbours of a key change places."""
    by_key: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for rows in draft.home.values():
        for row in filter(is_event, rows):
            by_key[row.topic, row.key].append(row)
    first, second = draft.rng.choice([pair for events in by_key.values() for pair in pairwise(events)])
    swap = {id(first): second, id(second): first}
    for sequence, rows in draft.home.items():
        draft.home[sequence] = [swap.get(id(row), row) for row in rows]


def an_event_without_its_rows(draft: Draft) -> None:
    """It is in another commit record than its transaction's rows."""
    sequence, event = draft.event()
    draft.drop(sequence, [event])
    draft.home[_other(draft, sequence)].append(event)


def an_event_before_its_commit_record(draft: Draft) -> None:
    """It came into sight before its transaction's rows, in no commit record."""
    sequence, event = draft.event()
    draft.drop(sequence, [event])
    draft.unsaid[sequence] = [event]


def events_of_a_rolled_back_transaction(draft: Draft) -> None:
    """Its rows are not visible, and its events are."""
    sequence, event = draft.event()
    name = json.loads(event.value)["tx"]
    number = next(transaction_of(row) for _, row in draft.rows("marks", "c") if row.value["after"]["id"] == name)
    a_rolled_back_transaction(draft, [row for row in draft.home[sequence] if transaction_of(row) == number])
    draft.drop(sequence, [row for row in draft.home[sequence] if transaction_of(row) == number])


def an_event_of_a_savepoint(draft: Draft) -> None:
    """Its client has rolled it back, and nothing else of its transaction."""
    _, event = draft.event()
    said = json.loads(event.value)
    entry = draft.journal.entries[said["tx"]]
    entry.ops = [op for op in entry.ops if not (op[1] == "e" and op[2] and op[2]["n"] == said["n"])]


def an_event_without_its_headers(draft: Draft) -> None:
    sequence, event = draft.event(of_a_row=True)
    bare = replace(event, headers=())
    draft.home[sequence] = [bare if row is event else row for row in draft.home[sequence]]


def an_event_in_another_partition(draft: Draft) -> None:
    sequence, event = draft.event()
    elsewhere = replace(event, partition=event.partition + 1)
    draft.home[sequence] = [elsewhere if row is event else row for row in draft.home[sequence]]


def _other(draft: Draft, sequence: int) -> int:
    """The next commit record with rows, or the one before the last."""
    plain: list[int] = [commit["sequence"] for commit in draft.commits if commit["kind"] == "batch"]
    return next((number for number in plain if number > sequence), plain[-2])


PLANTS: dict[Plant, set[str]] = {
    a_lost_row: {"lost", "differs"},
    a_lost_transaction: {"lost"},
    a_doubled_row: {"doubled"},
    every_first_row_doubled: {"doubled"},
    a_doubled_transaction: {"torn", "doubled"},
    a_torn_transaction: {"torn"},
    a_transaction_without_its_mark: {"torn", "lost"},
    all_transactions_without_their_marks: {"lost"},
    a_wrong_order_of_a_key: {"order", "differs"},
    a_wrong_order_of_transactions: {"order"},
    a_rolled_back_transaction: {"rolled back"},
    money_out_of_nothing: {"bank"},
    a_changed_value: {"differs"},
    a_lost_tombstone: {"lost", "doubled"},
    a_truncate_in_one_partition: {"torn"},
    a_load_of_an_older_row: {"order"},
    a_lost_line_without_key: {"lost", "differs", "final"},
    a_missing_commit_record: {"commit records"},
    a_position_that_goes_back: {"commit records"},
    progress_that_goes_back: {"progress"},
    a_doubt_that_does_not_end: {"ledger"},
    a_source_that_differs: {"final"},
    a_lost_one_of_a_late_abort: {"ranges"},
    a_dirty_one_of_a_late_commit: {"rolled back"},
    a_doubled_one_of_a_late_commit: {"doubled"},
    a_split_one_of_a_late_commit: {"split"},
    a_prepared_one_in_sight_while_in_doubt: {"split"},
    a_lost_event: {"event lost"},
    a_doubled_event: {"event doubled"},
    a_doubled_event_of_a_restart: {"event doubled"},
    two_events_of_a_key_exchanged: {"event order"},
    an_event_without_its_rows: {"event torn"},
    an_event_before_its_commit_record: {"event torn"},
    events_of_a_rolled_back_transaction: {"event rolled back"},
    an_event_of_a_savepoint: {"event rolled back"},
    an_event_without_its_headers: {"event differs"},
    an_event_in_another_partition: {"event order"},
}
"""Each with the kinds of which one must be found."""
