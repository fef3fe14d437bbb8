"""`DdlMessage`: a table as a message of the source's event triggers describes it. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from twofold.descriptions.description import Description
from twofold.descriptions.staleness import Lacking, find_lacking, graver

PREFIX = "twofold.ddl"
"""The prefix of DDL messages."""
TEXT_MAX = 256 << 10
"""The longest description that a pin keeps: some 4,000 columns."""


@dataclass(frozen=True, slots=True)
class DdlMessage:
    """A table behind a DDL command, at the message's position in the stream."""

    schema: str
    name: str
    described: Description
    lacking: Lacking | None = None
    """What the topic lacks because of earlier commands of the same transaction, or of the gathered
    outcomes."""

    @property
    def oid(self) -> int:
        return self.described.oid

    def behind(self, earlier: Mapping[int, DdlMessage]) -> DdlMessage:
        """Return the message with what earlier messages about the table imply for its topic."""
        if (before := earlier.get(self.oid)) is None:
            return self
        lacking = graver(find_lacking(before.described, self.described), self.lacking)
        described = self.described.follow(before.described)
        return replace(self, described=described, lacking=graver(before.lacking, lacking))


def parse_ddl_message(content: bytes, publication: str) -> DdlMessage | None:
    """Return the content of a DDL message; None if it describes no table.

    Anybody who may connect to the database can write such a message, also with other content. A
    message without content separates the messages before it from the rows behind it.
    """
    try:
        table = json.loads(content)["table"]
        message = DdlMessage(table["schema"], table["name"], Description.from_json(table, publication))
        text = message.described.to_text()
        # The keys are made for their KeyError: an index may have a column that the table lacks.
        is_sound = (
            _conforms(message, DdlMessage) and len(text) <= TEXT_MAX and message.described.usable_keys is not None
        )
        return message if is_sound and Description.from_text(text) == message.described else None
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
