"""The settings of `twofold run` itself: transactions, events, loads, limits, display."""

from __future__ import annotations

import fnmatch
import re
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator

from twofold.config.kinds import Name, Part, TopicPrefix, is_loopback, secret_source
from twofold.errors import UsageError
from twofold_common.secret_sources import SecretSource
from twofold_common.table_names import split_table_name

_EVENT_PATTERN = "outbox:(?P<topic>[a-z]+)/(?P<key>.*)"
"""The example of a pattern that messages show."""
_GID_PATTERN = "pay-(?P<global>[0-9]+)-(?P<branch>[a-z]+)"
"""The example of a pattern that messages show."""


class GidRule(Part):
    """A rule for prepared transactions whose gid matches a pattern; the first match wins."""

    gid: str = Field(description="Shell pattern: * ? [...].")
    action: Literal["open", "park"] = Field(
        description="open: send the rows to Kafka at PREPARE. park: keep them in the spool until the outcome."
    )


class PreparedConfig(Part):
    """Prepared transactions."""

    hold: float = Field(
        30,
        gt=0,
        description="How long a prepared transaction stays open in Kafka before it is parked, so that readers continue. Must be below kafka.transaction_timeout.",
    )
    open_within: float = Field(
        0.2,
        ge=0,
        description="A prepared transaction is opened after this time at the latest; while more than `prepared.pool` are in doubt, after up to ten times as long. It is opened after 10 ms if at most `prepared.pool` are in doubt and nothing waits to be read.",
    )
    pool: int = Field(
        8, ge=1, le=100, description="Number of prepared transactions that may be open at once; more are parked."
    )
    synchronous: bool = Field(False, description="Acknowledge a PREPARE to PostgreSQL only when Kafka has its rows.")
    rules: tuple[GidRule, ...] = Field((), description="Rules by gid, see below.")
    gid_patterns: tuple[str, ...] = Field(
        (),
        description="Regular expressions (Python's) for your own coordinator's gids, with the groups global and branch; the first that matches wins.",
    )
    doubt_warning: float = Field(
        600, gt=0, description="Report a prepared transaction that is older as in doubt too long."
    )

    @field_validator("gid_patterns")
    @classmethod
    def _name_global_and_branch(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            try:
                groups = re.compile(pattern).groupindex
            except re.error as error:
                raise ValueError(
                    f"{pattern!r} is not a regular expression: {error}; write one such as {_GID_PATTERN!r}, in TOML in single quotes"
                ) from None
            if missing := [name for name in ("global", "branch") if name not in groups]:
                raise ValueError(
                    f"{pattern!r} lacks the group {' and the group '.join(missing)}: name both, such as {_GID_PATTERN!r}"
                )
        return patterns

    def parks(self, gid: str) -> bool:
        """Whether a rule parks this gid: the counterpart of an output plugin's filter_prepare."""
        for rule in self.rules:
            if fnmatch.fnmatchcase(gid, rule.gid):
                return rule.action == "park"
        return False


class ColumnRule(Part):
    """A rule for columns whose name matches a pattern; the first match wins."""

    column: str = Field(description="Shell pattern of schema.table.column; * matches dots too, and [[] is a bracket.")
    action: Literal["keep", "drop", "null", "redact", "hash"] = Field(
        description="drop: no column. redact: [redacted]. hash: HMAC-SHA-256."
    )

    @field_validator("column")
    @classmethod
    def _has_three_parts(cls, column: str) -> str:
        if column.count(".") < 2:
            raise ValueError('must be schema.table.column, for example "public.*.email"')
        return column

    def matches(self, name: str) -> bool:
        return fnmatch.fnmatchcase(name, self.column)


class PolicyConfig(Part):
    """The data policy: what of columns is not published."""

    key_file: Path | None = Field(None, description="File with the key of hashes: 32 bytes or more.")
    columns: tuple[ColumnRule, ...] = Field((), description="Rules by column, see below.")

    @property
    def hash_key(self) -> bytes:
        """The key of hashed columns; empty if no rule hashes."""
        if all(rule.action != "hash" for rule in self.columns):
            return b""
        if self.key_file is None:
            raise UsageError(f"policy.columns has a hash, and policy.key_file is not set; {_MAKE_KEY}")
        try:
            key = self.key_file.read_bytes().rstrip(b"\r\n")
        except OSError as error:
            raise UsageError(
                f"policy.key_file {self.key_file} cannot be read ({error.strerror}); {_MAKE_KEY}"
            ) from None
        if len(key) < KEY_BYTES_MIN:
            raise UsageError(
                f"policy.key_file {self.key_file} has {len(key)} bytes, fewer than {KEY_BYTES_MIN}; {_MAKE_KEY}"
            )
        return key


KEY_BYTES_MIN = 32
_MAKE_KEY = "make a key once and keep it, because with another one equal values differ: openssl rand -hex 32 > FILE"


class BackfillConfig(Part):
    """Loads of the rows that tables already have."""

    readers: int = Field(2, ge=1, le=32, description="Number of tables that are read at the same time.")
    chunk_rows: int = Field(10_000, ge=1, description="Rows in a chunk, which is read and published at once.")
    chunk_bytes: int = Field(8 << 20, ge=1, description="Bytes after which a chunk ends, whatever its rows.")
    rows_per_second: int = Field(0, ge=0, description="Limit of a table's load, on average; 0: none.")
    notice: float = Field(
        10,
        ge=0,
        description="How often to look for tables that joined the publication. 0: they are found at their first row, or at the next start.",
    )


class TurnConfig(Part):
    """Limits of one turn."""

    rows: int = Field(
        20_000,
        ge=1,
        description="Rows after which a turn ends, at the next transaction's end. Up to four times as many while Kafka commits the turn before.",
    )
    bytes: int = Field(16 << 20, ge=1, description="Bytes after which a turn ends, at the next transaction's end.")
    time: float = Field(
        0.5,
        gt=0,
        description="Longest time of a turn while more waits to be read and Kafka has committed the turn before.",
    )
    idle_progress: float = Field(
        10, gt=0, description="How often an idle connector confirms PostgreSQL's position, so that no WAL is held."
    )


class SpoolConfig(Part):
    """Where prepared and large transactions wait. It is a cache: losing it loses nothing."""

    folder: Path = Field(
        Path("/var/tmp/twofold"),  # noqa: S108  (a name of its own is made in it, readable by its owner alone)
        description="Folder for rows that exceed the memory; the connector creates a folder of its name in it.",
    )
    memory: int = Field(64 << 20, ge=0, description="Memory for waiting rows.")
    disk: int = Field(64 << 30, ge=0, description="Disk for waiting rows; beyond it the run ends, says so and retries.")


class StatusConfig(Part):
    """The status page, metrics and health of `twofold run`."""

    listen: str = Field(
        "127.0.0.1:8787",
        description="host:port of the status page, /metrics, /healthz and /readyz. Port 0: a free one; none: off. Beyond loopback it requires status.token_file.",
    )
    token_file: Path | None = Field(
        None,
        description="File whose first line is the bearer token for /metrics and the page; required beyond loopback.",
    )

    @property
    def token(self) -> SecretSource | None:
        return secret_source("status", self, "token")

    @property
    def host(self) -> str:
        return self.listen.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        return int(self.listen.rpartition(":")[2])

    @model_validator(mode="after")
    def _is_guarded(self) -> StatusConfig:
        if self.listen == "none":
            return self
        host, port = self.host, self.listen.rpartition(":")[2]
        if not host or not port.isdecimal() or int(port) > 65535:
            raise ValueError(f"status.listen is {self.listen!r}: host:port, for example 127.0.0.1:8787, or none")
        if self.token is None and not is_loopback(host):
            raise ValueError(
                f"status.listen is {self.listen}, which others reach: set status.token_file, or listen on 127.0.0.1"
            )
        return self


class LogConfig(Part):
    """The log of `twofold run`, on stderr."""

    format: Literal["text", "json"] = Field("text", description="Lines for people, or one JSON object a line.")
    level: Literal["debug", "info", "warning", "error"] = Field("info", description="The lowest level that is logged.")


class GroupConfig(Part):
    """The sources whose databases share global transactions; the same in each connector."""

    name: Name | None = Field(None, description="The group's name.")
    members: tuple[TopicPrefix, ...] = Field((), description="Topic prefixes of all members, this one's included.")

    @model_validator(mode="after")
    def _is_a_group(self) -> GroupConfig:
        if not self.members and self.name is None:
            return self
        if not self.members or self.name is None:
            raise ValueError(
                'a group needs both settings, for example name = "bank" and members = ["bank_east", "bank_west"]'
            )
        if len(set(self.members)) != len(self.members) or len(self.members) == 1:
            raise ValueError(f"members is {', '.join(self.members)}: name two prefixes or more, each once")
        return self


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
            raise ValueError(f"messages is no regular expression ({error}), for example {_EVENT_PATTERN!r}") from None
        if "topic" not in groups or not groups <= {"topic", "key"}:
            raise ValueError(f"messages needs the group topic, and may have key, for example {_EVENT_PATTERN!r}")
        return self

    @property
    def name(self) -> tuple[str, str] | None:
        """The table's schema and name; None without a table."""
        return split_table_name(self.table) if self.table is not None else None
