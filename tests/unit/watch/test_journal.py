"""The journal: what happens again and again is one line."""

from __future__ import annotations

from twofold.watch.journal import LINES_MAX, Journal


def test_the_failures_of_one_outage_are_one_line_that_says_how_often_and_since_when() -> None:
    journal = Journal()
    for at in range(0, 100, 10):
        journal.write(at, "ended", "the run ended", f"Kafka does not answer, attempt {at}", "Unreachable")
    (line,) = journal.lines
    assert (line.times, line.since, line.at, line.text) == (10, 0, 90, "Kafka does not answer, attempt 90")


def test_another_cause_is_another_line() -> None:
    journal = Journal()
    journal.write(1, "ended", "the run ended", "a", "Unreachable")
    journal.write(2, "ended", "the run ended", "b", "Fenced")
    journal.write(3, "ended", "the run ended", "c", "Unreachable")
    assert [(line.cause, line.times) for line in journal.lines] == [("Fenced", 1), ("Unreachable", 2)]


def test_the_same_an_hour_later_is_a_line_of_its_own() -> None:
    journal = Journal()
    journal.write(0, "parked", "parked", "a")
    journal.write(3600, "parked", "parked", "b")
    assert [line.text for line in journal.lines] == ["a", "b"]


def test_it_is_bounded_and_keeps_the_newest() -> None:
    journal = Journal()
    for at in range(2 * LINES_MAX):
        journal.write(at, "table", f"table {at}")
    assert len(journal.lines) == LINES_MAX
    assert journal.lines[-1].what == f"table {2 * LINES_MAX - 1}"


def test_tables_that_change_at_once_are_named_in_one_line_up_to_eight() -> None:
    journal = Journal()
    for n in range(400):
        journal.write(float(n / 100), "load", "load begun", f"t{n}")
    (line,) = journal.lines
    assert (line.text, line.times) == ("t0, t1, t2, t3, t4, t5, t6, t7", 400)
