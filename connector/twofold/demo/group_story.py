"""The story of two banks: a transfer between them, and one whose coordinator dies between the two
COMMIT PREPARED. The mirror of both never shows half of it.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from twofold.demo.cast import OPENING_BALANCE, run_twofold
from twofold.demo.group_cast import ACCOUNTS_EACH, BANKS, GroupCast, GroupStory
from twofold.demo.teller import Teller
from twofold.demo.watcher import Watcher, topics_of
from twofold.stack import LocalStack

TOTAL = len(BANKS) * ACCOUNTS_EACH * OPENING_BALANCE
TOPICS = [f"{bank}.public.accounts" for bank in BANKS]
WHOLE, HALF = 100, 50
EAST, WEST = 1, 4
"""The accounts of the transfers between the banks."""


def tell_group_story(teller: Teller, stack: LocalStack, folder: Path, ending: ExitStack) -> GroupCast:
    """Tell the whole story on a started stack.

    Raise if anything is wrong; `ending` ends what was started.
    """
    cast = GroupCast(stack, folder)
    ending.callback(cast.stop)
    story = _Story(teller, cast, ending)
    story.found_the_banks()
    story.transferred()
    story.coordinator_dies()
    story.recovered()
    return cast


class _Story(GroupStory):
    def __init__(self, teller: Teller, cast: GroupCast, ending: ExitStack) -> None:
        super().__init__(teller, cast)
        self.ending = ending
        self.everyone: Watcher

    def found_the_banks(self) -> None:
        t = self.t
        t.chapter("Two banks: a database and a connector for each, and one mirror of both")
        self.cast.found_banks()
        self.cast.start()
        t.say("twofold run: one for each bank, both with the same [group]")
        t.say("twofold-spark mirror --prefix east --prefix west: started (it starts slowly, then reads everything)")
        self.open_accounts()
        t.wait("the connectors to make the topics", lambda: set(TOPICS) <= topics_of(self.cast.stack.kafka.bootstrap))
        self.everyone = Watcher(
            bootstrap=self.cast.stack.kafka.bootstrap,
            registry=self.cast.stack.registry.url,
            topics=TOPICS,
            isolation="read_committed",
        )
        self.ending.callback(self.everyone.close)
        self._mirror_shows(east=0, west=0)
        t.say("An auditor reads each global cut that the mirror publishes, by read_cut, and adds up all accounts:")
        t.good(f"the mirror: {self.last}")

    def transferred(self) -> None:
        t = self.t
        t.chapter(f"{WHOLE} go from east to west: prepared in both databases, then committed in both")
        self._prepare("transfer-1", WHOLE)
        for bank in BANKS:
            self.run(bank, f"COMMIT PREPARED 'transfer-1-{bank}'")
        self._mirror_shows(east=-WHOLE, west=WHOLE)
        t.good(f"the mirror: {self.last}")

    def coordinator_dies(self) -> None:
        t = self.t
        t.chapter(f"{HALF} more, and the coordinator dies between the two COMMIT PREPARED")
        self._prepare("transfer-2", HALF)
        self.run("east", "COMMIT PREPARED 'transfer-2-east'")
        t.say("... and nobody says COMMIT PREPARED in west")
        t.wait("everyone to see east's half", lambda: sum(self.everyone.balances.values()) == TOTAL - HALF)
        t.good(f"who adds up the topics of both banks finds {TOTAL - HALF}: {HALF} are nowhere")
        self.west_goes_on()
        t.good("west goes on: the mirror shows a later transfer between two of its accounts")
        t.check(f"the mirror: {self.last}: the transfer is in neither bank yet", holds=self._is(-WHOLE, WHOLE))

    def recovered(self) -> None:
        t = self.t
        t.chapter("The coordinator recovers")
        t.say("twofold prepared list, for who must end it by hand:")
        for line in run_twofold(self.cast.configs["west"], "prepared", "list").splitlines():
            t.say(f"  {line}")
        self.run("west", "COMMIT PREPARED 'transfer-2-west'")
        self._mirror_shows(east=-WHOLE - HALF, west=WHOLE + HALF)
        t.good(f"the mirror: {self.last}")
        audited = self.cast.audited()
        t.check(
            f"the auditor has read {len(audited)} global cuts, and in each the total was {TOTAL}",
            holds=all(cut.total == TOTAL for cut in audited),
        )

    def _prepare(self, transfer: str, amount: int) -> None:
        for bank, account, change in (("east", EAST, -amount), ("west", WEST, amount)):
            update = f"UPDATE accounts SET balance = balance + {change} WHERE id = {account}"  # noqa: S608  (numbers of the story)
            self.run(bank, f"BEGIN; {update}; PREPARE TRANSACTION '{transfer}-{bank}'")

    def _mirror_shows(self, *, east: int, west: int) -> None:
        self.t.wait("the mirror to show it", lambda: self._is(east, west), seconds=180)

    def _is(self, east: int, west: int) -> bool:
        """Whether the banks have so much more than in the beginning in the last global cut."""
        audited, opening = self.cast.audited(), ACCOUNTS_EACH * OPENING_BALANCE
        return bool(audited) and [audited[-1].sum_of(bank) - opening for bank in BANKS] == [east, west]
