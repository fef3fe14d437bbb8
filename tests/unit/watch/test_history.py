"""The samples of a day and the moments of a position: bounded, and true however long it takes."""

from __future__ import annotations

import random

from twofold.watch.history import DAY_S, INTERVAL_S, MOMENTS_MAX, History, Moments, Sample, summarize


def sample(at: float, value: float = 0.0) -> Sample:
    return Sample(at, value, value, value, int(value), value)


def test_an_hour_has_all_samples_and_a_day_one_a_minute() -> None:
    history = History()
    for n in range(int(2 * DAY_S / INTERVAL_S)):
        history.add(sample(n * INTERVAL_S, float(n)))
    assert (len(history.samples), len(history.minutes)) == (720, 1440)
    assert history.samples[-1].at - history.samples[0].at == 3600 - INTERVAL_S
    assert history.minutes[-1].at - history.minutes[0].at == DAY_S - 60
    assert history.minutes[-1].at <= history.samples[-1].at


def test_a_minute_has_the_mean_of_rates_and_the_most_of_what_is_too_much() -> None:
    found = summarize([Sample(0, 10, 1, 0.5, None, None), Sample(5, 30, 3, 4.0, 700, 12.0)], 60)
    assert found == Sample(60, 20, 2, 4.0, 700, 12.0)
    assert summarize([Sample(0, 10, 1, 0.5, None, None)], 60).behind_s is None


def test_the_moment_of_a_position_is_the_first_at_which_there_was_more() -> None:
    moments = Moments()
    for at, position in ((1.0, 100), (2.0, 100), (3.0, 200), (4.0, 300)):
        moments.add(at, position)
    assert [m and m.at for m in map(moments.first_beyond, (50, 100, 250, 300))] == [1.0, 3.0, 4.0, None]
    assert [m and m.at for m in map(moments.last_up_to, (50, 100, 250, 300))] == [None, 1.0, 3.0, 4.0]


def test_an_outage_of_days_is_seen_in_its_length_and_memory_is_bounded() -> None:
    moments, chance = Moments(), random.Random(5)
    position = 0
    for n in range(50_000):
        position += chance.randint(0, 3)
        moments.add(float(n), position)
    assert len(moments._moments) <= MOMENTS_MAX
    first = moments.first_beyond(-1)
    assert first is not None
    assert first.at == 0.0


def test_what_is_handled_is_forgotten_but_for_the_last_of_it() -> None:
    moments = Moments()
    for n in range(10):
        moments.add(float(n), n)
    moments.drop_before(7)
    assert [each.number for each in moments._moments] == [7, 8, 9]


def test_a_server_whose_position_is_lower_is_another_one() -> None:
    moments = Moments()
    moments.add(1.0, 1000)
    moments.add(2.0, 10)
    assert [each.number for each in moments._moments] == [10]
