"""The state's sorted map against a dict, and that a change of a large one is cheap."""

from __future__ import annotations

import random

import pytest

from twofold.bridge import State, events, initial, step
from twofold.bridge.sorted_map import CHUNK_MAX, SortedMap
from twofold_common.positions import Lsn, PreparedIdentity


@pytest.mark.parametrize("seed", range(20))
def test_it_is_a_dict_in_order_that_never_changes(seed: int) -> None:
    chance = random.Random(seed)
    keys = chance.choice([3, 40, 1_000])
    held: SortedMap[int, int] = SortedMap()
    known: dict[int, int] = {}
    for n in range(2_000):
        key, before, was = chance.randrange(keys), held, dict(known)
        if chance.random() < 0.55:
            held, known[key] = held.put(key, n), n
        else:
            held = held.without(key)
            known.pop(key, None)
        assert (held.get(key), key in held) == (known.get(key), key in known)
        if n % 50 == 0:
            ordered = sorted(known.items())
            assert [*held.items()] == ordered
            assert (len(held), bool(held), held.first) == (len(known), bool(known), ordered[0][1] if known else None)
            assert [*held.since(key)] == [value for at, value in ordered if at >= key]
            assert (held, hash(held)) == (SortedMap(known.items()), hash(SortedMap(known.items())))
            assert dict(before.items()) == was


def test_maps_that_differ_are_not_equal() -> None:
    some = SortedMap({n: n for n in range(CHUNK_MAX + 1)}.items())
    assert some != some.put(5, 6)
    assert some != some.without(5)
    assert some == some.without(5).put(5, 5)
    assert len({some, some.without(5).put(5, 5)}) == 1


def in_doubt(count: int) -> State:
    state = initial(applied_lsn=Lsn(0), confirmed_lsn=Lsn(0), sequence=0, pool=1)
    for n in range(count):
        state, _ = step(state, events.PrepareRead(PreparedIdentity(n, "gid"), Lsn(n * 10), Lsn(n * 10 + 5), 1, "rule"))
    return state


def test_a_step_touches_little_of_the_thousands_that_are_in_doubt() -> None:
    """A step's new state shares all chunks with the former one but those of one transaction."""
    before = in_doubt(5_000)
    middle = PreparedIdentity(2_500, "gid")
    after, _ = step(before, events.CommitPreparedRead(middle, Lsn(60_000), Lsn(60_005)))
    assert after.find(middle) is None
    shared = {id(chunk) for chunk in before.prepared._by_prepare._chunks}
    new = [chunk for chunk in after.prepared._by_prepare._chunks if id(chunk) not in shared]
    assert len(new) == 1
    assert len(shared) > 5_000 // CHUNK_MAX
