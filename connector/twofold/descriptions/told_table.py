"""`ToldTable`: what a message of the source's event triggers tells of a table. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from twofold.descriptions.description import Description
from twofold.descriptions.staleness import Lacking, find_lacking, graver

PREFIX = "twofold.ddl"
"""The prefix of the messages."""
TEXT_MAX = 256 << 10
"""The longest description that a pin keeps: some 4,000 columns."""


@dataclass(frozen=True, slots=True)
class ToldTable:
    """A table behind a command, at the message's position in the stream."""

    schema: str
    name: str
    described: Description
    lacking: Lacking | None = None
    """What the topic lacks because of earlier commands of the same transaction, or group."""

    @property
    def oid(self) -> int:
        return self.described.oid

    def behind(self, earlier: Mapping[int, ToldTable]) -> ToldTable:
        """Return the table with what its transaction, or its group, has told of it before."""
        if (before := earlier.get(self.oid)) is None:
            return self
        lacking = graver(find_lacking(before.described, self.described), self.lacking)
        described = self.described.follow(before.described)
        return replace(self, described=described, lacking=graver(before.lacking, lacking))


def told_table(content: bytes, publication: str) -> ToldTable | None:
    """Return what a message tells; None if it tells of no table.

    Anybody who may connect to the database can write such a message, also with other content. A
    message without content separates the messages before it from the rows behind it.
    """
    try:
        table = json.loads(content)["table"]
        told = ToldTable(table["schema"], table["name"], Description.from_json(table, publication))
        text = told.described.to_text()
        # The keys are made for their KeyError: an index may have a column that the table lacks.
        is_sound = _conforms(told, ToldTable) and len(text) <= TEXT_MAX and told.described.usable_keys is not None
        return told if is_sound and Description.from_text(text) == told.described else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _conforms(value: Any, kind: Any) -> bool:
    """Whether the value is as annotated. ValueError: a text that UTF-8 does not have."""
    if isinstance(kind, UnionType):
        return any(_conforms(value, each) for each in get_args(kind))
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return isinstance(value, kind) and all(  # type: ignore[arg-type]
            _conforms(getattr(value, each.name), hints[each.name]) for each in fields(kind)
        )
    origin, parts = get_origin(kind), get_args(kind)
    if origin is tuple and parts[-1] is not ...:
        return isinstance(value, tuple) and len(value) == len(parts) and all(map(_conforms, value, parts))
    if origin in {tuple, frozenset}:
        return isinstance(value, origin) and all(_conforms(each, parts[0]) for each in value)
    if kind is str:
        return isinstance(value, str) and value.encode() is not None
    return type(value) is kind or (kind is NoneType and value is None)
