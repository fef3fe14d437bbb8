"""The comparison of descriptions, broken in five ways. Each must be found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from twofold.descriptions import ddl_message, staleness
from twofold.descriptions.description import Description
from twofold.tables import pins

Comparison = Callable[..., Any]
find_lacking = staleness.find_lacking


def blind_to(**values: Any) -> Comparison:
    """It takes these for what they were."""

    def compare(before: Description, now: Description, **how: Any) -> Any:
        return find_lacking(replace(before, **values), replace(now, **values), **how)

    return compare


def blind_to_numbers(before: Description, now: Description, **how: Any) -> Any:
    """A column is its name."""
    numbers = {column.name: column.number for column in before.columns}
    columns = tuple(replace(c, number=numbers.get(c.name, c.number), older_rows_have=False) for c in now.columns)
    now = replace(now, columns=columns, former=frozenset())
    return find_lacking(replace(before, former=frozenset()), now, **how)


def blind_to_publications(before: Description, now: Description, **how: Any) -> Any:
    """Published is published."""
    if now.publication:
        before = replace(before, publication=now.publication)
    return find_lacking(before, now, **how)


MUTANTS: dict[str, Comparison] = {
    "names for a time": blind_to(type_row=0),
    "rewritten tables": blind_to(files=""),
    "columns by their names": blind_to_numbers,
    "entries of publications": blind_to_publications,
    "all": lambda *_, **__: None,
}


@contextmanager
def broken(name: str) -> Iterator[None]:
    with patch.object(pins, "find_lacking", MUTANTS[name]), patch.object(ddl_message, "find_lacking", MUTANTS[name]):
        yield
