"""The story: transfers, prepared ones, a connector killed; at the end the comparison."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from twofold.demo.cast import ACCOUNTS, HOLD_S, NAME, OPENING_BALANCE, Bank, Cast
from twofold.demo.teller import Teller
from twofold.demo.watcher import Watcher, topics_of
from twofold.errors import Unreachable
from twofold.stack import LocalStack

ROWS_OF_A_TRANSFER = 3
TRANSFERS = 20
TOPICS = [f"{NAME}.public.accounts", f"{NAME}.public.transfers"]


def tell_story(teller: Teller, stack: LocalStack, folder: Path, ending: ExitStack) -> Cast:
    """Tell the whole story on a started stack.

    Raise if anything is wrong; `ending` ends what was started.
    """
    cast = Cast(stack, folder)
    ending.callback(cast.stop)
    bank = Bank(stack.postgres.dsn())
    ending.callback(bank.close)
    story = _Story(teller, cast, bank, ending)
    story.found_the_bank()
    story.transfers()
    story.prepared_and_committed()
    story.prepared_and_rolled_back()
    story.killed()
    story.forgotten()
    story.compared()
    return cast


class _Story:
    def __init__(self, teller: Teller, cast: Cast, bank: Bank, ending: ExitStack) -> None:
        self.t = teller
        self.cast = cast
        self.bank = bank
        self.ending = ending
        self.everyone: Watcher
        self.anyone: Watcher

    def found_the_bank(self) -> None:
        t = self.t
        t.chapter("A small bank: from PostgreSQL into Kafka and into a table")
        self.bank.found()
        for line in self.cast.initialise().splitlines():
            t.say(f"twofold init: {line}")
        self.cast.start_connector()
        self.cast.start_mirror()
        t.say("twofold run: started; the Spark mirror job: started (it starts slowly, then reads everything)")
        self.bank.open_accounts()
        self._watch()
        t.wait("the accounts to be visible in Kafka", lambda: self.everyone.rows_in("accounts") == ACCOUNTS)
        t.good(f"{ACCOUNTS} accounts with {OPENING_BALANCE} each are visible to every consumer of Kafka")

    def _watch(self) -> None:
        kafka, registry = self.cast.stack.kafka.bootstrap, self.cast.stack.registry.url

        def watcher(isolation: str) -> Watcher:
            made = Watcher(bootstrap=kafka, registry=registry, topics=TOPICS, isolation=isolation)
            self.ending.callback(made.close)
            return made

        self.t.wait("the connector to make the topics", self._topics_are_there)
        self.everyone = watcher("read_committed")
        self.anyone = watcher("read_uncommitted")

    def _topics_are_there(self) -> bool:
        connector = self.cast.connector
        if connector is not None and not connector.running():
            raise Unreachable(f"the connector ended: {connector.last_words()} (log: {connector.log})")
        return set(TOPICS) <= topics_of(self.cast.stack.kafka.bootstrap)

    def transfers(self) -> None:
        self.t.chapter(f"{TRANSFERS} transfers, each two updates and an insert in one transaction")
        for number in range(TRANSFERS):
            self.bank.transfer(number % ACCOUNTS + 1, (number + 1) % ACCOUNTS + 1, 10 + number)
        took = self._wait_for(TRANSFERS, "the transfers to be visible")
        self.t.good(f"all visible {took * 1000:.0f} ms after the last COMMIT")
        balances, total = self.everyone.balances, ACCOUNTS * OPENING_BALANCE
        adds_up = sum(balances.values()) == total and balances == self.bank.balances()
        self.t.check(f"the balances add up to {total} in Kafka too", holds=adds_up)

    def prepared_and_committed(self) -> None:
        t, gid = self.t, "salary-november"
        t.chapter("A transfer is prepared: its rows are in Kafka, and nobody sees them")
        t.sql(f"BEGIN; UPDATE ...; UPDATE ...; INSERT ...; PREPARE TRANSACTION '{gid}'")
        self.bank.transfer(1, 2, 100, prepare=gid)
        t.wait("the rows to reach Kafka", lambda: self.anyone.rows_of(gid) == ROWS_OF_A_TRANSFER)
        t.good(
            f"read_uncommitted: {self.anyone.rows_of(gid)} rows of it are in Kafka, acknowledged, in a transaction that is open"
        )
        t.check("read_committed: 0 rows", holds=self.everyone.rows_of(gid) == 0)
        t.sql(f"COMMIT PREPARED '{gid}'")
        self.bank.run(f"COMMIT PREPARED '{gid}'")
        took = t.wait("everyone to see them", lambda: self.everyone.rows_of(gid) == ROWS_OF_A_TRANSFER)
        t.good(f"read_committed: {ROWS_OF_A_TRANSFER} rows, {took * 1000:.0f} ms later: only a commit had to travel")

    def prepared_and_rolled_back(self) -> None:
        t, gid = self.t, "salary-by-mistake"
        t.chapter("One is prepared and rolled back: nobody ever saw it")
        self.bank.transfer(3, 4, 500, prepare=gid)
        t.wait("the rows to reach Kafka", lambda: self.anyone.rows_of(gid) == ROWS_OF_A_TRANSFER)
        t.sql(f"ROLLBACK PREPARED '{gid}'")
        self.bank.run(f"ROLLBACK PREPARED '{gid}'")
        self._transfer_and_wait("a later transfer")
        t.check(
            "a later transfer is visible, of this one read_committed saw 0 rows", holds=self.everyone.rows_of(gid) == 0
        )

    def killed(self) -> None:
        t, gid = self.t, "interrupted"
        t.chapter("The connector is killed with kill -9 while a transfer is prepared")
        self.bank.transfer(3, 4, 70, prepare=gid)
        t.wait("the rows to reach Kafka", lambda: self.anyone.rows_of(gid) == ROWS_OF_A_TRANSFER)
        assert self.cast.connector is not None
        self.cast.connector.kill()
        t.say(f"kill -9 {self.cast.connector.pid}; meanwhile, in PostgreSQL:")
        t.sql(f"COMMIT PREPARED '{gid}', and five more transfers")
        self.bank.run(f"COMMIT PREPARED '{gid}'")
        all_of_them = self.everyone.rows_in("transfers") + 6
        for _ in range(5):
            self.bank.transfer(4, 5, 1)
        self.cast.start_connector()
        took = self._wait_for(all_of_them, "the connector to recover")
        t.good(f"started again: all six are visible {took:.1f} s later")
        t.check(
            "each of them once",
            holds=self.everyone.rows_of(gid) == ROWS_OF_A_TRANSFER
            and self._rows_of_transfers() == (all_of_them, 2 * all_of_them),
        )

    def forgotten(self) -> None:
        t, gid = self.t, "forgotten"
        t.chapter(
            f"One is prepared and forgotten: after {HOLD_S} s (prepared.hold) it is parked, and the others continue"
        )
        self.bank.transfer(5, 6, 60, prepare=gid)
        t.wait("the rows to reach Kafka", lambda: self.anyone.rows_of(gid) == ROWS_OF_A_TRANSFER)
        took = self._transfer_and_wait("a transfer behind it")
        t.good(f"a transfer behind it was visible after {took:.1f} s: the open one had to be parked first")
        took = self._transfer_and_wait("the next transfer")
        t.good(f"the next one after {took * 1000:.0f} ms: the parked transaction delays nobody")
        t.sql(f"COMMIT PREPARED '{gid}'")
        self.bank.run(f"COMMIT PREPARED '{gid}'")
        took = t.wait("it to be visible", lambda: self.everyone.rows_of(gid) == ROWS_OF_A_TRANSFER)
        t.good(f"committed at last: its {ROWS_OF_A_TRANSFER} rows are visible {took * 1000:.0f} ms later")

    def compared(self) -> None:
        t = self.t
        t.chapter("The mirror tables equal PostgreSQL, row by row")
        t.check("every balance in Kafka equals PostgreSQL's", holds=self.everyone.balances == self.bank.balances())
        t.say("twofold_spark verify compares the Iceberg tables with PostgreSQL, row by row ...")
        done = self.cast.verify()
        for line in done.stdout.strip().splitlines():
            t.say(f"  {line}")
        equal = "the mirror tables equal the source"
        why = "" if done.returncode == 0 else f" (status {done.returncode}: {self.cast.last_words_of_verify()})"
        t.check(equal + why, holds=done.returncode == 0)

    def _transfer_and_wait(self, what: str) -> float:
        after = self.everyone.rows_in("transfers") + 1
        self.bank.transfer(1, 2, 5)
        return self._wait_for(after, f"{what} to be visible")

    def _wait_for(self, transfers: int, what: str) -> float:
        """Wait until that many transfers are seen whole.

        A consumer reads one partition after the other, so one topic's rows can come before the
        other's.
        """
        return self.t.wait(
            what,
            lambda: all(
                seen >= due for seen, due in zip(self._rows_of_transfers(), (transfers, 2 * transfers), strict=True)
            ),
        )

    def _rows_of_transfers(self) -> tuple[int, int]:
        """Return how many rows were seen of transfers, and of accounts: two for each."""
        return self.everyone.rows_in("transfers"), self.everyone.rows_in("accounts") - ACCOUNTS
