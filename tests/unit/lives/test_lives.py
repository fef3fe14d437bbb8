"""What the halves of a table's life decide where the model has no story of it."""

from __future__ import annotations

from twofold.lives import load_life
from twofold.lives.exchanged import CommandExecuted, ExecuteCommand, LoadCommand, WatchTopic
from twofold.lives.load_life import (
    BeginReading,
    CommandDue,
    CommandGiven,
    ExecuteStart,
    LoadAction,
    LoadEnded,
    LoadEvent,
    LoadLife,
    LoadPhase,
    PinRead,
    ReadingDue,
    ReloadDue,
    ReportDelayedRows,
    RowsPassedOver,
    StopReading,
    TableRecreated,
    TableUnpublished,
    TopicEmptied,
    TopicPinned,
    TopicUnpinned,
    step_load,
)
from twofold.lives.load_progress import LoadProgress
from twofold.lives.topic_life import RowsCounted, TopicLife, step_topic

RELOAD = LoadProgress(reload=True)
HALF = LoadProgress(after=b"d")
READING = LoadLife(LoadPhase.READING, HALF)


def given(number: int, name: str) -> CommandGiven:
    return CommandGiven(LoadCommand(number, name))


def lived(life: LoadLife, *happened: LoadEvent) -> tuple[LoadLife, list[LoadAction]]:
    actions: list[LoadAction] = []
    for event in happened:
        life, decided = step_load(life, event)
        actions += decided
    return life, actions


def test_a_life_is_hashable() -> None:
    assert len({READING, LoadLife(LoadPhase.READING, HALF), LoadLife()}) == 2
    assert len({TopicLife(keyless=False), TopicLife(keyless=False)}) == 1


def test_a_run_begins_with_a_pin() -> None:
    assert lived(LoadLife(), PinRead("paused", RELOAD))[0] == LoadLife(LoadPhase.STOPPED, RELOAD, empties=True)
    assert lived(LoadLife(), PinRead("running", HALF), ReadingDue()) == (READING, [BeginReading(HALF)])
    assert lived(LoadLife(), PinRead("ready", LoadProgress()))[0] == LoadLife()


def test_a_topic_that_starts_over_begins_with_its_truncate() -> None:
    life, actions = lived(READING, TopicUnpinned(), TopicPinned(keyless=True), ReadingDue())
    assert actions == [StopReading(), WatchTopic(keyless=True, reload=True), BeginReading(RELOAD)]
    assert life.empties
    assert not lived(life, TopicEmptied())[0].empties


def test_a_table_that_is_not_published_is_not_loaded() -> None:
    assert lived(READING, TableUnpublished()) == (LoadLife(), [StopReading()])


def test_the_load_of_a_table_that_is_gone_finds_that_by_itself() -> None:
    life, actions = lived(LoadLife(LoadPhase.READING, RELOAD, empties=True), RowsPassedOver())
    assert (life, actions) == (LoadLife(LoadPhase.READING, RELOAD), [])


def test_a_recreated_table_is_loaded_from_the_beginning_once() -> None:
    life, _ = lived(READING, TableRecreated(), TableRecreated())
    assert life.needs_turn
    life, actions = lived(life, ReloadDue(), TableRecreated(), ReadingDue())
    assert actions == [StopReading(), BeginReading(RELOAD)]
    assert not life.needs_turn


def test_a_table_that_is_recreated_when_its_load_ends_is_loaded_again() -> None:
    assert lived(READING, TableRecreated(), LoadEnded())[0] == LoadLife(recreated=True)


def test_a_reload_that_nobody_asked_for_executes_the_command_that_it_overtakes() -> None:
    life, actions = lived(READING, given(1, "pause"), ReloadDue(), CommandDue(), TopicEmptied())
    assert actions == [StopReading(), ExecuteStart(1)]
    assert life.command is None


def test_the_newest_command_alone_is_carried_out() -> None:
    life, actions = lived(READING, given(1, "pause"), given(2, "resume"), CommandDue(), CommandDue())
    assert actions == [StopReading(), ExecuteCommand(LoadCommand(2, "resume"), reload=False)]
    assert lived(life, CommandExecuted(1, "paused", HALF))[0] == life
    assert lived(life, CommandExecuted(2, "running", HALF))[0] == LoadLife(LoadPhase.DUE, HALF)


def test_a_cancel_that_is_refused_is_reported_and_the_load_continues() -> None:
    sent, _ = lived(READING, given(1, "cancel"), CommandDue())
    assert lived(sent, CommandExecuted(1, "running", HALF)) == (LoadLife(LoadPhase.DUE, HALF), [ReportDelayedRows()])
    assert lived(sent, CommandExecuted(1, "ready", HALF)) == (LoadLife(), [])


def test_a_command_about_a_table_without_a_load_is_executed_and_changes_nothing() -> None:
    life, actions = lived(LoadLife(), given(1, "resume"), CommandDue(), CommandExecuted(1, "ready", HALF))
    assert (life, actions) == (LoadLife(), [ExecuteCommand(LoadCommand(1, "resume"), reload=False)])


def test_a_chunk_is_counted() -> None:
    counted, _ = step_topic(TopicLife(keyless=False, state="running"), RowsCounted(3, 70, 1.5))
    assert counted.progress == LoadProgress(rows=3, size=70, seconds=1.5)


def test_the_barrier_waits_for_those_that_were_there_when_it_began() -> None:
    holders = {"1/7": (0, ""), "2/8": (70, "p")}
    first = load_life.blocking(holders, None, resumed=False, delivered=[(70, "p")])
    assert first == {"1/7", "2/8"}
    later = {"2/8": (70, "p"), "3/9": (0, "")}
    assert load_life.blocking(later, first, resumed=False, delivered=[(70, "p")]) == {"2/8"}
    assert load_life.blocking(later, first, resumed=True, delivered=[(70, "p")]) == frozenset()


def test_the_barrier_knows_a_prepared_transaction_that_a_restart_of_the_server_renamed() -> None:
    first = load_life.blocking({"3/4": (725, "p")}, None, resumed=False, delivered=())
    renamed, resumed = {"-1/725": (725, "p")}, {"-1/725": (725, "p"), "3/4": (0, "")}
    assert load_life.blocking(renamed, first, resumed=False, delivered=()) == {"-1/725"}
    assert load_life.blocking(renamed, first, resumed=True, delivered=[(725, "p")]) == frozenset()
    assert load_life.blocking(resumed, frozenset({"-1/725"}), resumed=False, delivered=()) == {"-1/725"}
