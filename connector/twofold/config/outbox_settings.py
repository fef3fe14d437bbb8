"""The settings of outboxes: where events come from, and how their topics are chosen."""

from __future__ import annotations

import re

from pydantic import Field, model_validator

from twofold.config.kinds import Part
from twofold_common.table_names import split_table_name

_PATTERN = "outbox:(?P<topic>[a-z]+)/(?P<key>.*)"
"""The example of a pattern that messages show."""


class OutboxRule(Part):
    """Events: the inserts of a table, or logical messages."""

    table: str | None = Field(None, description="The table whose inserts are events: schema.table.")
    topic_column: str = Field("aggregatetype", description="The column that names the topic.")
    key_column: str = Field("aggregateid", description="The column of the key.")
    payload_column: str = Field("payload", description="The column of the value.")
    header_columns: tuple[str, ...] = Field(("id", "type"), description="Columns that become headers.")
    messages: str | None = Field(
        None,
        description="Regular expression (Python's) of logical messages' prefixes, with the group topic and, if wanted, key.",
    )

    @model_validator(mode="after")
    def _has_one_source(self) -> OutboxRule:
        if (self.table is None) == (self.messages is None):
            raise ValueError('set table (such as "public.outbox") or messages, one of the two')
        if self.table is not None and "*" not in self.table and split_table_name(self.table) is not None:
            return self
        if self.table is not None:
            raise ValueError('table must be schema.table, for example "public.outbox"')
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
