"""The page of readers, written from what was found."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Final

from bench import connect

from clients.flink_gateway import lock
from clients.samples import SAMPLES
from clients.tables import IDENTITIES, WORDS, Table
from clients.trial import RIGHT
from vocabulary import PROSE_MAX

_HEAD: Final = """\
# Readers, type by type

Written by `make clients`: each program reads topics that a connector has filled, and its rows are
compared with PostgreSQL's. What the settings mean, and which reader needs what:
[who reads the topics](../use/clients.md).

- **right**: all rows and values are PostgreSQL's.
- **right (1)**: with the setting of that number.
- **cannot**: with none that was tried; the last list says why.

A cell with two lines differs between `REPLICA IDENTITY FULL` and the default identity.

Tried: {versions}.
"""
_USERS: Final = {"mood": "enum", "pair": "composite", "cents": "domain of `numeric(9, 2)`"}
_TYPES: Final = """
## Types
Rows are inserted, updated to and from null, deleted, and change their key.
"""
_CHANGES: Final = """
## Kinds of change
Tables with one column of type `text`.
"""


@dataclass
class Findings:
    """Verdicts by reader, then by row of the page's tables, then by identity."""

    types: dict[str, dict[str, dict[str, str]]] = field(default_factory=dict)
    changes: dict[str, dict[str, dict[str, str]]] = field(default_factory=dict)
    kcat: str = ""

    def add(self, reader: str, table: Table, verdicts: dict[str, str]) -> None:
        for name, verdict in verdicts.items():
            if table.name == "every":
                found, row = self.types, name
            else:
                found, row = self.changes, table.name.removeprefix("on_")
            found.setdefault(reader, {}).setdefault(row, {})[table.identity] = verdict

    def as_json(self) -> dict[str, Any]:
        return {"types": self.types, "changes": self.changes, "kcat": self.kcat}


def versions() -> str:
    """Of the readers."""
    locked = {each.name: each.version for file in ("console", "flink") for each in lock(file)}
    (sink,) = connect.locked("jdbc")
    return (
        f"Kafka's tools {locked['kafka-tools']}, confluent-kafka {version('confluent-kafka')}, Spark {version('pyspark')}, "
        f"Debezium's JDBC sink {sink.version}, Flink {locked['flink-clients']} "
        f"with its Kafka connector {locked['flink-sql-connector-kafka']}"
    )


class _Notes:
    """Settings and reasons, numbered as they come."""

    def __init__(self) -> None:
        self.settings: list[tuple[str, str]] = []
        self.reasons: dict[tuple[str, str], list[str]] = {}

    def cell(self, reader: str, row: str, by_identity: dict[str, str]) -> str:
        shown = {identity: self._shown(reader, row, verdict) for identity, verdict in by_identity.items()}
        if len(set(shown.values())) == 1:
            return next(iter(shown.values()))
        return "<br>".join(f"{_word(identity)}: {shown[identity]}" for identity in reversed(IDENTITIES))

    def _shown(self, reader: str, row: str, verdict: str) -> str:
        word, _, told = verdict.partition(": ")
        if word != RIGHT:
            rows = self.reasons.setdefault((reader, told), [])
            rows += [row] if row not in rows else []
            return "cannot"
        if not told:
            return RIGHT
        if (reader, told) not in self.settings:
            self.settings.append((reader, told))
        return f"{RIGHT} ({self.settings.index((reader, told)) + 1})"


def _word(identity: str) -> str:
    return "FULL" if identity == "full" else "default"


def written(findings: Findings) -> str:
    """The whole page."""
    notes = _Notes()
    names = {s.name: _USERS.get(s.type, f"`{s.type}`") + (" in `special`" if s.special else "") for s in SAMPLES}
    grouped = _grouped(findings.types, names)
    types = _table("type", findings.types, grouped, notes)
    changes = _table("change", findings.changes, {words: row for row, words in WORDS.items()}, notes)
    settings = [f"{number}. {reader}: {told}" for number, (reader, told) in enumerate(notes.settings, 1)]
    reasons = [
        f"- {reader}: {', '.join(_shortened(rows, list(grouped)))}: {told}"
        for (reader, told), rows in notes.reasons.items()
    ]
    parts = [
        _HEAD.format(versions=versions()),
        _TYPES,
        *types,
        _CHANGES,
        *changes,
        "\n## Settings\n",
        *settings,
        "\n## Why a reader cannot\n",
        *reasons,
    ]
    page = "\n".join([*parts, "", "## kcat", f"{findings.kcat[:1].upper()}{findings.kcat[1:]}.", ""])
    return "\n".join(line for long in page.split("\n") for line in wrapped(long))


def wrapped(line: str) -> list[str]:
    """Wrap a line of prose as all pages do; a row of a table stays one."""
    if line.startswith("|") or len(line) <= PROSE_MAX:
        return [line]
    indent = " " * (2 if line.startswith("- ") else line.find(" ") + 1 if line[0].isdigit() else 0)
    return textwrap.wrap(line, PROSE_MAX, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _shortened(rows: list[str], types: list[str]) -> list[str]:
    """`all types` in place of all of them."""
    if not set(types) <= set(rows):
        return rows
    return ["all types", *(row for row in rows if row not in types)]


def _grouped(found: dict[str, dict[str, dict[str, str]]], names: dict[str, str]) -> dict[str, str]:
    """Types that all readers treat alike share a line: its words, and one of them."""
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(repr([_kinds(found[reader][name]) for reader in found]), []).append(name)
    return {", ".join(names[name] for name in group): group[0] for group in alike.values()}


def _kinds(by_identity: dict[str, str]) -> list[str]:
    return [verdict if verdict.startswith(RIGHT) else "cannot" for verdict in by_identity.values()]


def _table(what: str, found: dict[str, dict[str, dict[str, str]]], rows: dict[str, str], notes: _Notes) -> list[str]:
    readers = list(found)
    lines = [f"| {what} | {' | '.join(readers)} |", "|---" * (len(readers) + 1) + "|"]
    for words, row in rows.items():
        cells = [notes.cell(reader, words, found[reader][row]) for reader in readers]
        lines.append(f"| {words} | {' | '.join(cells)} |")
    return lines
