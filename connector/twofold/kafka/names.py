"""The names that one connector uses in Kafka: topics, transactional ids, keys.

Pure. The names are fixed, short and enumerable, because recovery must fence every id.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from twofold.errors import UsageError
from twofold_avro.names import TopicNames
from twofold_avro.records import Commit
from twofold_common.global_loads import ends_a_load

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,150}")
_SKIPPED = re.compile(r"([^/]+)/([0-9A-F]{1,16})/([0-9a-z-]+)")
_COMMIT_KEY = re.compile(rb"([0-9]{1,19})(/prepared|/load)?")


@dataclass(frozen=True, slots=True)
class Names(TopicNames):
    """All names, derived from the topic prefix and the connector's name."""

    name: str

    def __post_init__(self) -> None:
        if not _TOPIC.fullmatch(self.prefix) or self.prefix in {".", ".."}:
            raise UsageError(
                f"kafka.prefix is {self.prefix!r}, which cannot begin a topic's name: use up to 150 letters, digits, '.', '_' and '-'"
            )
        if not self.name or "/" in self.name:
            raise UsageError(
                f"the connector's name is {self.name!r}: set name to a text that is not empty and has no '/'"
            )

    @property
    def main_ids(self) -> tuple[str, str]:
        """The transactional ids of the main producers."""
        return f"{self.prefix}.main", f"{self.prefix}.main.2"

    def prepared_id(self, slot: int) -> str:
        """The transactional id of a slot of the pool."""
        return f"{self.prefix}.prepared.{slot:02d}"

    @property
    def progress_key(self) -> bytes:
        return self.name.encode()

    @property
    def takeover_key(self) -> bytes:
        return f"{self.name}/takeover".encode()

    @property
    def refusal_key(self) -> bytes:
        return f"{self.name}/refusal".encode()

    def pin_key(self, topic: str) -> bytes:
        return f"{self.name}/table/{topic}".encode()

    def command_key(self, topic: str, command: str) -> bytes:
        """Return the key of a command about a topic's load."""
        return f"{self.name}/backfill/{topic}/{record_of(command)}".encode()

    def command_topic(self, key: bytes) -> str | None:
        """Return the topic whose load a progress-topic key commands; None for another key."""
        head = f"{self.name}/backfill/".encode()
        return _text(key[len(head) :]).partition("/")[0] if key.startswith(head) else None

    def skip_key(self, topic: str, lsn: int, row: str) -> bytes:
        """Return the key of a command to skip one row."""
        return f"{self.name}/skip/{topic}/{lsn:X}/{row}".encode()

    def skipped_row(self, key: bytes) -> tuple[str, int, str] | None:
        """Return topic, position and name of the row that a progress-topic key skips."""
        head = f"{self.name}/skip/".encode()
        found = _SKIPPED.fullmatch(_text(key[len(head) :])) if key.startswith(head) else None
        return (found[1], int(found[2], 16), found[3]) if found else None

    def pinned_topic(self, key: bytes) -> str | None:
        """Return the topic that a progress-topic key pins; None for another key."""
        head = f"{self.name}/table/".encode()
        return _text(key[len(head) :]) if key.startswith(head) else None


class CommitKey(NamedTuple):
    """The key of a commit record, decoded: a source group needs nothing else of most records."""

    sequence: int
    is_awaited: bool
    """Whether a frontier must know the commit record: it has prepared transactions, or ends the
    load of a table."""


def commit_key(commit: Commit) -> bytes:
    """Return a commit record's key."""
    ends = ends_a_load(commit.kind, (each.topic for each in commit.ranges), commit.backfilling)
    return f"{commit.sequence}{'/prepared' if commit.prepared else '/load' if ends else ''}".encode()


def read_commit_key(key: bytes | None) -> CommitKey | None:
    """Return the content of a commit record's key; None for another key."""
    found = _COMMIT_KEY.fullmatch(key or b"")
    return CommitKey(int(found[1]), found[2] is not None) if found else None


def record_of(command: str) -> str:
    """Return the record of a topic, of its two, that has this command.

    With one record for all commands a later pause would hide a start that nobody has executed.
    """
    return "load" if command in {"start", "cancel"} else "pause"


def _text(name: bytes) -> str:
    """Return a name that anybody may have written: bytes that are no text stand for themselves."""
    return name.decode(errors="backslashreplace")
