"""Finds the order of the global transactions within a step from one global cut to the next, for
readers that bring one after the other. Pure.

Every member commits in its own order, and two members may commit two global transactions in
opposite orders. Then no order agrees with both, and these come together, with what lies between
them in each member. A *unit* is the least that must come together; most have one transaction.

The end of a load comes behind what its rows may belong to: behind what each member must be shown
with it (`twofold_common.global_loads`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from twofold_common.global_cut import Load

Place = tuple[int, int]
"""A transaction in its member: the number of its commit record, and where its commit begins. All
of a load's commit record has one place."""


class Stop(NamedTuple):
    """A transaction that may not come alone."""

    place: Place
    name: str | Load
    """The global transaction that it belongs to, or the load that it ends."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Transactions that must come together."""

    global_ids: tuple[str, ...]
    parts: Mapping[str, tuple[Place, Place]]
    """The first and the last transaction of each member, by prefix: what is between belongs to it
    too."""


def order_units(stops: Mapping[str, Sequence[Stop]]) -> list[Unit]:
    """Return the units of a step in an order that every member's order agrees with.

    `stops`: what each member commits within the step, by prefix, in its order.
    """
    names = {(prefix, place): _name(name) for prefix, each in stops.items() for place, name in each}
    places: dict[Hashable, list[tuple[str, Place]]] = defaultdict(list)
    for (prefix, place), name in names.items():
        places[name].append((prefix, place))
    return [_make_unit(names, places) for names in _sort_components(_find_followers(stops))]


def _name(name: str | Load) -> Hashable:
    return (name.prefix, name.sequence) if isinstance(name, Load) else name


def _find_followers(stops: Mapping[str, Sequence[Stop]]) -> dict[Hashable, list[Hashable]]:
    """Return what follows each: in its member, or as a load."""
    followers: dict[Hashable, list[Hashable]] = {_name(name): [] for each in stops.values() for _, name in each}
    for each in stops.values():
        for (_, before), (_, behind) in pairwise(each):
            followers[_name(before)].append(_name(behind))
    for load in (name for each in stops.values() for _, name in each if isinstance(name, Load)):
        for prefix, least in (load.least or {}).items():
            if shown := [name for (sequence, _), name in stops.get(prefix, ()) if sequence <= least]:
                followers[_name(shown[-1])].append(_name(load))
    return followers


def _sort_components(followers: Mapping[Hashable, Iterable[Hashable]]) -> list[list[Hashable]]:
    """Return the strongly connected components, each behind all that it follows (Tarjan)."""
    number: dict[Hashable, int] = {}
    lowest: dict[Hashable, int] = {}
    waiting: list[Hashable] = []
    is_waiting: set[Hashable] = set()
    found: list[list[Hashable]] = []

    def enter(node: Hashable) -> tuple[Hashable, Iterator[Hashable]]:
        number[node] = lowest[node] = len(number)
        waiting.append(node)
        is_waiting.add(node)
        return node, iter(followers[node])

    for root in followers:
        path = [enter(root)] if root not in number else []
        while path:
            node, left = path[-1]
            behind = next(left, None)
            if behind is None:
                path.pop()
                if path:
                    lowest[path[-1][0]] = min(lowest[path[-1][0]], lowest[node])
                if lowest[node] == number[node]:
                    component = [waiting.pop()]
                    while component[-1] != node:
                        component.append(waiting.pop())
                    is_waiting.difference_update(component)
                    found.append(component)
            elif behind not in number:
                path.append(enter(behind))
            elif behind in is_waiting:
                lowest[node] = min(lowest[node], number[behind])
    return found[::-1]


def _make_unit(names: Iterable[Hashable], places: Mapping[Hashable, Iterable[tuple[str, Place]]]) -> Unit:
    parts: dict[str, tuple[Place, Place]] = {}
    for name in names:
        for prefix, place in places[name]:
            first, last = parts.get(prefix, (place, place))
            parts[prefix] = min(first, place), max(last, place)
    return Unit(tuple(sorted(each for each in names if isinstance(each, str))), parts)
