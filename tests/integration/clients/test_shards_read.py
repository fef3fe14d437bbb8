"""Two databases that are shards of one table, read as one stream: a program keeps their rows in a
plain map by the table's key, and behind every global transaction each row is there once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import cycle, islice, product

import pytest

from fixtures.connector import Maker, wait_until
from helpers.connector.moving_accounts import ACCOUNTS, MARK, Mover, Rows, assert_whole, fill, read_sources
from integration.clients.test_group_reader import reader_of
from integration.connector.test_frontiers import Group, in_doubt
from twofold_reader import Change, Transaction

MOVES = 12


class PlainMap:
    """The accounts by their number, and the bookmark of what is in them.

    Each reading is one of a new reader.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._bookmark = "beginning"
        self.rows: Rows = {}
        self.global_ids: list[str] = []
        self.moves = 0

    def read(self, at_most: int | None = None) -> Rows:
        """Apply so many global transactions; None: all that may be shown now."""
        with reader_of(self._group) as reader:
            for unit in islice(reader.transactions(self._bookmark, follow=False), at_most):
                was_full = len(self.rows) == len(ACCOUNTS)
                deleted, inserted = self._apply(unit.changes)
                self.global_ids += unit.global_ids
                self._bookmark = unit.bookmark
                if was_full:
                    assert deleted == inserted, "a row that moves is deleted and inserted at once"
                    self.moves += deleted.total()
                    assert_whole(self.rows)
        return self.rows

    def _apply(self, changes: Iterable[tuple[str, Transaction, Change]]) -> tuple[Counter[int], Counter[int]]:
        """Return how often each account was deleted and inserted."""
        deleted, inserted = Counter[int](), Counter[int]()
        for shard, _, change in changes:
            assert change.table == "public.account"
            assert change.key is not None
            account = change.key["id"]
            if change.op == "d":
                deleted[account] += 1
                self.rows.pop(account, None)
                continue
            assert change.after is not None
            inserted[account] += change.op == "c"
            note = self.rows[account][2] if "note" in change.unchanged else change.after["note"]
            self.rows[account] = shard, change.after["version"], note
        return deleted, +inserted


@pytest.fixture
def group(connector: Maker) -> Group:
    """Its shards have their accounts, of which some are loaded."""
    made = Group(connector)
    fill(made.members)
    for here in made.members.values():
        here.carry()
    return made


def catch_up(group: Group) -> None:
    for here in group.members.values():
        here.caught_up(mark=MARK)


def shows_the_sources(group: Group, shards: PlainMap) -> bool:
    return shards.read() == read_sources(group.members)


@pytest.mark.core
def test_a_row_moves_at_once_whichever_branch_is_late(group: Group) -> None:
    shards = PlainMap(group)
    wait_until(lambda: shows_the_sources(group, shards), 90, "the map has the rows of both")
    ways = (group.east, group.west), (group.west, group.east)
    for number, ((old, new), is_delete_late) in enumerate(product(ways, (False, True)), 1):
        account = old.ask("SELECT min(id) FROM account")
        _, balance, note = shards.rows[account]
        branches = {old: f"__pgdog_2pc_a1b2_{number}_0", new: f"__pgdog_2pc_a1b2_{number}_1"}
        old.prepare(branches[old], f"DELETE FROM account WHERE id = {account}")
        new.prepare(branches[new], f"INSERT INTO account VALUES ({account}, {balance}, '{note}')")
        early, late = (new, old) if is_delete_late else (old, new)
        early.sql(f"COMMIT PREPARED '{branches[early]}'")
        wait_until(lambda: in_doubt(group.frontier(late)), 90, "the other has it in doubt")  # noqa: B023
        catch_up(group)
        assert shards.read()[account] == (old.prefix, balance, note)
        late.sql(f"COMMIT PREPARED '{branches[late]}'")
        wait_until(lambda: shows_the_sources(group, shards), 90, "the row has moved")
        assert shards.rows[account] == (new.prefix, balance, note)
        assert len(shards.global_ids) == shards.moves == number


def test_each_row_is_once_in_a_map_of_all_shards_while_rows_move(group: Group) -> None:
    """The reader ends again and again, and a next one continues from its bookmark."""
    shards = PlainMap(group)
    wait_until(lambda: shows_the_sources(group, shards), 90, "the map has the rows of both")
    mover = Mover(group.members)
    mover.start()
    try:
        for at_most in cycle((1, 4, None)):
            assert mover.is_alive(), mover.failure
            shards.read(at_most)
            if min(mover.moves, shards.moves) >= MOVES:
                break
    finally:
        mover.stop()
    catch_up(group)
    wait_until(lambda: shows_the_sources(group, shards), 90, "the map has the rows of both")
    assert shards.moves == mover.moves
    assert len(shards.global_ids) == len(set(shards.global_ids)) >= mover.moves
