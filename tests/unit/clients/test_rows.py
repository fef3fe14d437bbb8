"""What readers show is folded and compared as the trial of clients needs it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pytest

from clients.rows import CannotReadError, fold_changelog, fold_envelopes, literal, value_of


def envelope(op: str, before: dict[str, Any] | None, after: dict[str, Any] | None, **lists: Any) -> dict[str, Any]:
    return {"op": op, "before": before, "after": after, "unchanged": [], "special": [], **lists}


def test_envelopes_are_folded_with_their_lists_or_without() -> None:
    special = [
        {"row": "after", "column": "day", "text": "infinity"},
        {"row": "before", "column": "day", "text": "-infinity"},
    ]
    envelopes = [
        envelope("c", None, {"id": 1, "day": None, "large": "x"}, special=special),
        envelope("u", None, {"id": 1, "day": None, "large": None}, unchanged=["large"]),
        envelope("c", None, {"id": 2, "day": None, "large": "y"}),
        envelope("d", {"id": 2}, None),
    ]
    assert fold_envelopes(envelopes, lists=False) == {1: {"id": 1, "day": None, "large": None}}
    assert fold_envelopes(envelopes[:1], lists=True)[1]["day"] == "infinity"
    assert fold_envelopes(envelopes, lists=True)[1]["large"] == "x"
    assert fold_envelopes([*envelopes, envelope("t", None, None)], lists=True) == {}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ([("INSERT", [1, "a"]), ("DELETE", [1, None])], "never was"),
        ([("INSERT", [1, "a"]), ("INSERT", [1, "a"])], "twice"),
    ],
)
def test_changes_that_make_no_table(changes: Sequence[tuple[str, list[Any]]], why: str) -> None:
    with pytest.raises(CannotReadError, match=why):
        fold_changelog(changes, ["v"])


def test_changes_are_folded() -> None:
    changes = [("INSERT", [1, "a"]), ("UPDATE_BEFORE", [1, "a"]), ("UPDATE_AFTER", [1, "b"]), ("INSERT", [2, "c"])]
    assert fold_changelog([*changes, ("DELETE", [2, "c"])], ["v"]) == {1: {"v": "b"}}


@pytest.mark.parametrize(
    ("carried", "type_", "value"),
    [
        (-1, "timestamp(3)", datetime(1969, 12, 31, 23, 59, 59, 999999)),  # noqa: DTZ001
        (0, "timestamptz", datetime(1970, 1, 1, tzinfo=UTC)),
        (1, "time", time(0, 0, 0, 1)),
        (-1, "date", date(1969, 12, 31)),
        (b"\xff", "numeric(12, 2)", Decimal("-0.01")),
        ([0, None], "timestamp[]", [datetime(1970, 1, 1), None]),  # noqa: DTZ001
        ("1e-20", "numeric", "1e-20"),
        (7, "integer", 7),
    ],
)
def test_a_value_is_made_of_what_avro_carries(carried: Any, type_: str, value: Any) -> None:
    assert value_of(carried, type_) == value


def test_literals_are_postgresqls() -> None:
    assert literal([None, 'a"b\\', 1]) == '{NULL,"a\\"b\\\\","1"}'
    assert literal(b"\x00\xff") == "\\x00ff"
    assert literal(None) is None
