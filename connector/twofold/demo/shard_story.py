"""The story of one bank over two databases: an account moves from one to the other, and whoever
moves it dies between the two COMMIT PREPARED. The mirror has one table, with each account once.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from twofold.demo.cast import OPENING_BALANCE
from twofold.demo.group_cast import ACCOUNTS_EACH, BANKS, GroupCast, GroupStory
from twofold.demo.teller import Teller
from twofold.stack import LocalStack

ACCOUNTS = [*range(1, len(BANKS) * ACCOUNTS_EACH + 1)]
TOTAL = len(ACCOUNTS) * OPENING_BALANCE
FIRST = 1
"""The account that moves."""


def tell_shard_story(teller: Teller, stack: LocalStack, folder: Path, ending: ExitStack) -> GroupCast:
    """Tell the whole story on a started stack.

    Raise if anything is wrong; `ending` ends what was started.
    """
    cast = GroupCast(stack, folder, is_sharded=True)
    ending.callback(cast.stop)
    story = _Story(teller, cast)
    story.found_the_shards()
    story.moved()
    story.mover_dies()
    story.recovered()
    return cast


class _Story(GroupStory):
    def found_the_shards(self) -> None:
        t = self.t
        t.chapter("One bank over two databases, east and west, and one mirror with one table of accounts")
        self.cast.found_banks()
        self.cast.start()
        t.say("twofold run: one for each database, both with the same [group]")
        t.say("twofold-spark mirror --prefix east --prefix west --sharded public.accounts: started")
        self.open_accounts()
        self._mirror_shows(east=[1, 2, 3], west=[4, 5, 6])
        t.say("An auditor reads each global cut that the mirror publishes, by read_cut:")
        t.good(f"the one table: {self.last}")

    def moved(self) -> None:
        t = self.t
        t.chapter(f"Account {FIRST} moves from east to west: prepared in both databases, then committed in both")
        self._prepare("transfer-1", FIRST)
        for bank in BANKS:
            self.run(bank, f"COMMIT PREPARED 'transfer-1-{bank}'")
        self._mirror_shows(east=[2, 3], west=[1, 4, 5, 6])
        t.good(f"the one table: {self.last}")

    def mover_dies(self) -> None:
        t = self.t
        t.chapter(f"Account {FIRST} moves back, and whoever moves it dies when it is in both databases")
        self._prepare("transfer-2", FIRST, back=True)
        self.run("east", "COMMIT PREPARED 'transfer-2-east'")
        t.say("... and nobody says COMMIT PREPARED in west")
        there = [bank for bank in BANKS if FIRST in self.cast.banks[bank].balances()]
        t.check(f"account {FIRST} is in {' and in '.join(there)}", holds=there == [*BANKS])
        self.west_goes_on()
        t.check(f"the one table: {self.last}: the account is there once", holds=self._is([2, 3], [1, 4, 5, 6]))

    def recovered(self) -> None:
        t = self.t
        t.chapter("The coordinator recovers")
        self.run("west", "COMMIT PREPARED 'transfer-2-west'")
        self._mirror_shows(east=[1, 2, 3], west=[4, 5, 6])
        t.good(f"the one table: {self.last}")
        audited = self.cast.audited()
        audited = audited[[cut.accounts for cut in audited].index(ACCOUNTS) :]
        t.check(
            f"the auditor has read {len(audited)} global cuts, and in each every account was there once, {TOTAL} in all",
            holds=all(cut.accounts == ACCOUNTS and cut.total == TOTAL for cut in audited),
        )

    def _prepare(self, move: str, account: int, *, back: bool = False) -> None:
        old, new = reversed(BANKS) if back else BANKS
        row = f"({account}, 'customer {account}', {OPENING_BALANCE})"
        for bank, change in (
            (old, f"DELETE FROM accounts WHERE id = {account}"),  # noqa: S608  (numbers of the story)
            (new, f"INSERT INTO accounts VALUES {row}"),  # noqa: S608
        ):
            self.run(bank, f"BEGIN; {change}; PREPARE TRANSACTION '{move}-{bank}'")

    def _mirror_shows(self, *, east: list[int], west: list[int]) -> None:
        self.t.wait("the mirror to show it", lambda: self._is(east, west), seconds=180)

    def _is(self, east: list[int], west: list[int]) -> bool:
        """Whether the last global cut has these accounts in each database."""
        audited = self.cast.audited()
        return bool(audited) and [sorted(map(int, audited[-1].balances[bank])) for bank in BANKS] == [east, west]
