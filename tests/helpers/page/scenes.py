"""States of a connector that a running one does not stay in: what the page is shown in them,
without waiting for hours.
"""

from __future__ import annotations

import math
import random
import struct
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from fixtures.connector import Installation
from twofold.bridge import Event, State, events, initial, step
from twofold.group.ledgers import Branch
from twofold.inspect.in_doubt import InDoubt
from twofold.run.observer import BackfillProgress
from twofold.watch.activity import Activity
from twofold.watch.history import HOUR_S, INTERVAL_S, Sample
from twofold.watch.in_doubt_answers import InDoubtAnswers
from twofold.watch.metrics import Metrics
from twofold.watch.sampler import Sampler
from twofold.watch.server import Health, StatusServer, StatusSources, judge_health
from twofold.watch.snapshot import take_snapshot
from twofold_avro.records import Commit, Pin, Range
from twofold_common.mirror_place import MirrorPlace
from twofold_common.positions import Lsn, PreparedIdentity
from twofold_common.secret_sources import SecretFile

PREFIX = "bank"
_UID = struct.pack(">qqiii", 0x0A00_0207, 0x1F9C_03E4, 7, 41, 2)
NARAYANA = f"131077_{b64encode(_UID + b'shop-1').decode()}_{b64encode(_UID[::-1]).decode()}"
FOR_DATABASE_2 = "4711_dHJhbnNmZXItODE1_bGVkZ2Vy"
FOR_DATABASE_1 = "4711_dHJhbnNmZXItODE1_YmlsbGluZw=="
SIBLING = Branch("billing", FOR_DATABASE_1, "4711:transfer-815", "committed")


class Clock:
    """The time of day, which a scene moves."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Scene:
    """An activity at some moment, what PostgreSQL and the mirror say beside it, and the branches
    that are known.
    """

    def __init__(self, bank: Installation, clock: Clock, applied: int = 1) -> None:
        self.clock = clock
        self.activity = Activity(clock)
        self.sampler = Sampler(bank.conninfo, self.activity, clock=clock)
        self.branches: list[InDoubt] = []
        self.config = bank.config
        start = Lsn(applied)
        self.state: State = initial(applied_lsn=start, confirmed_lsn=start, sequence=7, pool=4)

    def take(self, *happened: Event, at_s: float | None = None) -> None:
        """Tell the activity what the bridge is told."""
        for event in happened:
            self.state, decided = step(self.state, event)
            self.activity.stepped(event, decided, self.state, int((at_s or self.clock.now) * 1e6))

    @contextmanager
    def served(self, token: SecretFile | None = None) -> Iterator[str]:
        """The page's address. PostgreSQL is asked as it is now."""
        config, activity, sampler = self.config, self.activity, self.sampler
        sampler._ask_source()
        sampler.close_connection()
        if sampler.source is not None and config.name == PREFIX:
            holders = (
                replace(each, slot=PREFIX, active_pid=4711, held_bytes=18 << 20) for each in sampler.source.holders
            )
            sampler.source = replace(sampler.source, holders=tuple(holders))
        view = InDoubtAnswers(lambda: (self.branches, ()))

        def health() -> Health:
            return judge_health(activity.view(), turn_bound_s=300)

        def answer(after: float) -> dict[str, object]:
            now = self.clock.now
            activity.turned()
            return take_snapshot(config, activity, health(), sampler, view, now=now, after=after)

        metrics = Metrics("bank", "bank", activity.view, health, sampler)
        with StatusServer("127.0.0.1", 0, StatusSources(answer, metrics.text, health), token) as server:
            yield f"http://127.0.0.1:{server.port}/"


def pin(table: str, schema_id: int, backfill: str = "ready", stale: str | None = None) -> dict[str, Pin]:
    """What is pinned of a table."""
    kept = Pin("public", table, 3, "{}", value_schema_id=schema_id, backfill=backfill, stale=stale)  # type: ignore[arg-type]
    return {f"{PREFIX}.public.{table}": kept}


def commit(**rows: int) -> Commit:
    """A commit record of so many rows of each table."""
    ranges = tuple(Range(f"{PREFIX}.public.{table}", 0, 0, n - 1, n) for table, n in rows.items())
    return Commit(1, "batch", 1, 1, 1, sum(rows.values()), ranges=ranges)


def fill_history(scene: Scene, *, spike_s: float = 48.0) -> None:
    """A quiet hour with one commit that took very long."""
    chance, end = random.Random(2), scene.clock.now
    count = int(HOUR_S / INTERVAL_S)
    for n in range(count):
        at = end - (count - 1 - n) * INTERVAL_S
        rows = 900 + 500 * math.sin(n / 60) + 220 * chance.random()
        late = spike_s if n == count - 300 else 0.02 + 0.03 * chance.random()
        behind = spike_s if n == count - 300 else 0.6 * chance.random() ** 6
        scene.sampler.history.add(Sample(at, rows, rows / 3, late, int(rows * 60), behind))


def overview(bank: Installation, now: float) -> Scene:
    """A bank at work: six tables of which one is loaded, two branches in doubt, a mirror beside
    it.
    """
    clock = Clock(now - 3.2 * HOUR_S)
    scene = Scene(bank, clock, applied=1 << 20)
    kafka = scene.config.kafka.model_copy(update={"bootstrap": "kafka-1:9092"})
    prepared = scene.config.prepared.model_copy(update={"hold": 30})
    scene.config = scene.config.model_copy(update={"name": PREFIX, "kafka": kafka, "prepared": prepared})
    activity = scene.activity
    activity.recovered(scene.state)
    pins: dict[str, Pin] = {}
    for schema_id, table in enumerate(("account", "transfer", "customer", "card", "ledger"), 4):
        pins |= pin(table, schema_id)
    activity.tables_known(pins)
    clock.now = now - 5400
    activity.published(commit(customer=310, card=45), pin("customer", 12))
    clock.now = now - 240
    activity.published(None, pin("statement", 15, "waiting"))
    clock.now = now - 95
    scene.take(events.PrepareRead(PreparedIdentity(80_113, FOR_DATABASE_2), Lsn(1 << 21), Lsn(1 << 21), rows=3))
    first = PreparedIdentity(80_113, FOR_DATABASE_2)
    scene.take(events.OpenDue(first), events.PreparedOpened(first))
    clock.now = now - 65
    scene.take(events.ParkDue(PreparedIdentity(80_113, FOR_DATABASE_2), "open for 30 s (prepared.hold)"))
    scene.take(events.PreparedAborted(PreparedIdentity(80_113, FOR_DATABASE_2)))
    clock.now = now - 6
    scene.take(events.PrepareRead(PreparedIdentity(80_240, NARAYANA), Lsn(1 << 22), Lsn(1 << 22), rows=12))
    second = PreparedIdentity(80_240, NARAYANA)
    scene.take(events.OpenDue(second), events.PreparedOpened(second))
    activity.published(commit(account=1_204_310, transfer=602_155, statement=340_000), {})
    activity.loading((BackfillProgress("public.statement", "reading", 340_000, 1_250_000, 9100.0, 100.0),))
    clock.now = now
    scene.take(
        events.PlainRead(715_000, 2_146_820, Lsn(1 << 50)),
        events.Drained(),
        events.MainCommitted(Lsn(1 << 50)),
        at_s=now - 0.03,
    )
    scene.sampler.mirror = MirrorPlace(scene.state.sequence, Lsn(1 << 50), int((now - 2) * 1e6), now)
    scene.sampler._mirror_heard_at = now
    scene.branches = [_branch(FOR_DATABASE_2)]
    fill_history(scene)
    return scene


def _branch(gid: str) -> InDoubt:
    return InDoubt(
        xid=80_113,
        gid=gid,
        owner="billing",
        age_s=95,
        global_id="4711:transfer-815",
        branch="ledger",
        others=(SIBLING,),
    )
