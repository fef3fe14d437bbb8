"""Readers of global transactions: each comes whole, in an order that every source agrees with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from model.group_world import first_violation
from model.order_world import OrderWorld
from twofold_common import global_order
from twofold_common.global_cut import Load
from twofold_common.global_order import Stop, Unit, order_units

SHORT = range(150)


def test_every_unit_is_whole_and_in_its_place() -> None:
    units = merged = loads = 0
    for seed in SHORT:
        world = OrderWorld(seed)
        world.run()
        units, merged, loads = units + world.units, merged + world.merged, loads + world.loads_shown
    assert units > 2 * len(SHORT)
    assert len(SHORT) // 3 < merged < units // 2, "some commit in opposite orders, most do not"
    assert loads > len(SHORT) // 2


def _each_alone(followers: Mapping[Any, Any]) -> list[list[Any]]:
    return [[each] for names in _sort(followers) for each in names]


def _without_loads(stops: Mapping[str, Any]) -> Any:
    free = {prefix: [_free(each) for each in found] for prefix, found in stops.items()}
    return _find(free)


def _free(stop: Stop) -> Stop:
    return stop if isinstance(stop.name, str) else stop._replace(name=stop.name._replace(least={}))


_sort, _find = global_order._sort_components, global_order._find_followers


@pytest.mark.parametrize(("rule", "broken"), [("_sort_components", _each_alone), ("_find_followers", _without_loads)])
def test_a_broken_rule_is_caught(rule: str, broken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(global_order, rule, broken)
    assert first_violation(OrderWorld, range(3000))


def stops(**members: str) -> dict[str, list[Stop]]:
    """Each letter is a global transaction, in a commit record of its own."""
    return {prefix: [Stop((n, 0), name) for n, name in enumerate(names, 1)] for prefix, names in members.items()}


def names(units: list[Unit]) -> list[str]:
    return ["".join(each.global_ids) for each in units]


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"a": "gh", "b": "gh"}, ["g", "h"]),
        ({"a": "gh", "b": "hg"}, ["gh"]),
        ({"a": "gxh", "b": "hg"}, ["ghx"]),
        ({"a": "gh", "b": "hk", "c": "kg"}, ["ghk"]),
        ({"a": "gxg"}, ["gx"]),
    ],
)
def test_what_no_order_agrees_with_comes_together(members: dict[str, str], expected: list[str]) -> None:
    assert names(order_units(stops(**members))) == expected


def test_what_comes_together_parts_what_is_before_from_what_is_behind() -> None:
    found = names(order_units(stops(a="xghy", b="zhgw")))
    assert (sorted(found[:2]), found[2], sorted(found[3:])) == (["x", "z"], "gh", ["w", "y"])


def test_the_end_of_a_load_comes_behind_what_its_rows_may_belong_to() -> None:
    members = stops(a="", b="gh")
    members["a"] = [Stop((1, 0), Load("a", 1, {"b": 1}))]
    assert [[*each.parts] for each in order_units(members)][:2] in ([["b"], ["a"]], [["b"], ["b"]])
    members["a"] = [Stop((1, 0), Load("a", 1, {"b": 2})), Stop((2, 0), "g")]
    (unit,) = order_units(members)
    assert unit == Unit(("g", "h"), {"a": ((1, 0), (2, 0)), "b": ((1, 0), (2, 0))})


def test_a_long_step_takes_no_recursion() -> None:
    long = [Stop((n, 0), f"g{n}") for n in range(1, 5000)]
    assert len(order_units({"a": long, "b": long})) == len(long)
    assert len(order_units({"a": long, "b": [Stop((n, 0), each.name) for n, each in enumerate(reversed(long))]})) == 1
