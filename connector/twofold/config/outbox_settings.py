"""The settings of outboxes: where events come from, and how their topics are chosen."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, model_validator

from twofold.config.kinds import Part
from twofold_common.table_names import split_table_name

_PATTERN = "outbox:(?P<topic>[a-z]+)/(?P<key>.*)"
"""The example of a pattern that messages show."""


class OutboxRule(Part):
    """Events: the inserts of a table, or logical messages."""

    table: str | None = Field(None, description="schema.table whose inserts are events.")
    topic_column: str = Field("aggregatetype", description="Names the topic.")
    key_column: str = Field("aggregateid", description="Has the key.")
    payload_column: str = Field("payload", description="Has the value.")
    payload_encoding: Literal["none", "avro"] = Field(
        "none", description="avro: by the newest schema of the topic's value subject."
    )
    header_columns: tuple[str, ...] = Field(("id", "type"), description="Become headers.")
    messages: str | None = Field(
        None,
        description="Regular expression (Python's) of logical messages' prefixes, with group topic and perhaps key.",
    )

    @model_validator(mode="after")
    def _has_one_source(self) -> OutboxRule:
        if (self.table is None) == (self.messages is None):
            raise ValueError('set table (such as "public.outbox") or messages, one of the two')
        if self.table is not None and "*" not in self.table and split_table_name(self.table) is not None:
            return self
        if self.table is not None:
            raise ValueError('table must be schema.table, for example "public.outbox"')
        if self.payload_encoding != "none":
            raise ValueError("payload_encoding is for a table: a message's content stays as it is")
        try:
            groups = re.compile(self.messages or "").groupindex.keys()
        except re.error as error:
            raise ValueError(f"messages is no regular expression ({error}), for example {_PATTERN!r}") from None
        if "topic" not in groups or not groups <= {"topic", "key"}:
            raise ValueError(f"messages needs the group topic, and may have key, for example {_PATTERN!r}")
        return self

    @property
    def name(self) -> tuple[str, str] | None:
        """The table's schema and name; None without a table."""
        return split_table_name(self.table) if self.table is not None else None
