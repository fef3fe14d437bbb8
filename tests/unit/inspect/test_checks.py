"""Recovery's step 4 as a pure function: one story is let through, and each contradiction is refused
with the repair.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from twofold.errors import Refused, SetupError, UsageError
from twofold.inspect.checks import check
from twofold.kafka.progress import RecoveredState
from twofold.source.identity import ServerIdentity, SlotState, TimelineSwitch
from twofold_avro.records import Commit, Progress
from twofold_common.positions import Lsn

PROGRESS = Progress(
    applied_lsn=1000,
    sequence=7,
    system_identifier="74",
    timeline=2,
    database="bank",
    slot="s",
    pool=8,
    written_at=0,
)
COMMIT = Commit(sequence=7, kind="batch", applied_lsn=1000, committed_at=0, transactions=1, rows=1)
SLOT = SlotState(
    name="s",
    database="bank",
    plugin="pgoutput",
    confirmed_flush=Lsn(1000),
    restart=Lsn(900),
    active_pid=1,
    two_phase=True,
    wal_status="reserved",
    invalidation_reason=None,
    failover=None,
)
SERVER = ServerIdentity("74", 2, Lsn(2000), "bank", 180000)
HISTORY = (TimelineSwitch(1, Lsn(500), "promoted"),)


RECOVERED = RecoveredState(PROGRESS, None, last_commit=COMMIT)


@dataclass(frozen=True)
class Story:
    """What recovery read, with the part that a test changes."""

    recovered: RecoveredState = RECOVERED
    slot: SlotState = SLOT
    server: ServerIdentity = SERVER
    history: tuple[TimelineSwitch, ...] = HISTORY
    two_phase: bool = True

    def check(self) -> Progress:
        return check(self.recovered, self.slot, self.server, self.history, prefix="p", two_phase=self.two_phase)


def having(progress: Progress | None = PROGRESS, last_commit: Commit | None = COMMIT) -> Story:
    return Story(RecoveredState(progress, None, last_commit=last_commit))


@pytest.mark.parametrize(
    "story",
    [
        Story(),
        Story(slot=replace(SLOT, confirmed_flush=Lsn(900))),  # held back by a prepared transaction
        Story(server=replace(SERVER, xlogpos=Lsn(1000))),
        Story(server=replace(SERVER, database="renamed"), slot=replace(SLOT, database="renamed")),
        Story(server=replace(SERVER, xlogpos=Lsn(999), is_standby=True)),  # it replays again
        having(last_commit=None),  # retention has taken it
        having(last_commit=replace(COMMIT, applied_lsn=990)),  # a progress-only transaction came after it
        Story(server=replace(SERVER, timeline=3), history=(*HISTORY, TimelineSwitch(2, Lsn(1000), ""))),
    ],
)
def test_one_story_is_let_through(story: Story) -> None:
    assert story.check() == PROGRESS


def promoted_without(ends_at: int) -> Story:
    return Story(server=replace(SERVER, timeline=3), history=(*HISTORY, TimelineSwitch(2, Lsn(ends_at), "")))


@pytest.mark.parametrize(
    ("story", "what"),
    [
        (having(None, None), "has no progress of this connector"),
        (Story(slot=replace(SLOT, confirmed_flush=Lsn(1001))), "has been confirmed up to 0/3E9"),
        (Story(server=replace(SERVER, system_identifier="75")), "belong to another source"),
        (Story(server=replace(SERVER, database="shop")), "belong to another source"),
        (Story(slot=replace(SLOT, database="shop")), "belong to another source"),
        (Story(slot=replace(SLOT, name="t")), "belong to another source"),
        (promoted_without(999), "left it at 0/3E7"),
        (Story(server=replace(SERVER, timeline=1), history=()), "is not among its ancestors"),
        (Story(server=replace(SERVER, xlogpos=Lsn(999))), "the server's WAL ends at 0/3E7"),
        (having(last_commit=replace(COMMIT, sequence=8)), "ends with number 8"),
        (having(last_commit=replace(COMMIT, sequence=6)), "ends with number 6"),
        (having(last_commit=replace(COMMIT, applied_lsn=1001)), "at 0/3E9"),
        (having(last_commit=replace(COMMIT, stream_id="of another init")), "number 7 of another stream"),
    ],
)
def test_a_contradiction_is_refused(story: Story, what: str) -> None:
    with pytest.raises(Refused) as refused:
        story.check()
    assert what in refused.value.what
    assert refused.value.at_stake
    assert "twofold" in refused.value.repair


def test_a_slot_of_the_other_kind_is_a_wrong_setting() -> None:
    with pytest.raises(UsageError, match=r"source\.two_phase is false"):
        Story(two_phase=False).check()


def test_an_interrupted_init_is_to_be_run_again() -> None:
    with pytest.raises(SetupError, match="run twofold init again"):
        having(replace(PROGRESS, applied_lsn=0), None).check()
