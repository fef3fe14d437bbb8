"""The page of readers, written from what was found."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field
from importlib.metadata import version
from string import ascii_lowercase
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
compared with PostgreSQL's. [Programs that read the topics](../../docs/use/clients.md) has what each
needs.

Tried: {versions}.

- **✓**: all rows and values are PostgreSQL's. A number names the setting that this needs.
- **✗**: not so with any setting that was tried. A letter names the reason.
- **✓/✗**: with `REPLICA IDENTITY FULL`, and with the default identity.

The rows of each type are inserted, updated to and from null, deleted, and change their key.
"""
_USERS: Final = {"mood": "enum", "pair": "composite", "cents": "domain of `numeric(9, 2)`"}


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
    """Settings and reasons, in the order in which the table names them."""

    def __init__(self) -> None:
        self.settings: list[str] = []
        self.reasons: list[str] = []

    def cell(self, by_identity: dict[str, str]) -> str:
        """Both identities, FULL first; one mark where they are alike."""
        return "/".join(dict.fromkeys(self._mark(by_identity[identity]) for identity in reversed(IDENTITIES)))

    def _mark(self, verdict: str) -> str:
        word, _, told = verdict.partition(": ")
        if word != RIGHT:
            return f"✗<sup>{ascii_lowercase[_place(told, self.reasons)]}</sup>"
        return f"✓<sup>{_place(told, self.settings) + 1}</sup>" if told else "✓"


def _place(text: str, known: list[str]) -> int:
    """Where the text is in the list; it is added if it is new."""
    if text not in known:
        known.append(text)
    return known.index(text)


def written(findings: Findings) -> str:
    """The whole page."""
    notes = _Notes()
    names = {s.name: _USERS.get(s.type, f"`{s.type}`") + (" in `special`" if s.special else "") for s in SAMPLES}
    readers = list(findings.types)
    rows = [(words, findings.types, row) for words, row in _grouped(findings.types, names).items()]
    rows += [(words, findings.changes, row) for row, words in WORDS.items()]
    table = [
        f"| {words} | {' | '.join(notes.cell(found[reader][row]) for reader in readers)} |"
        for words, found, row in rows
    ]
    parts = [
        _HEAD.format(versions=versions()),
        f"| type, or change of a `text` | {' | '.join(readers)} |",
        "|---" * (len(readers) + 1) + "|",
        *table,
        "\n## Settings\n",
        *(f"{number}. {told}" for number, told in enumerate(notes.settings, 1)),
        "\n## Reasons\n",
        *(f"- {letter}: {told}" for letter, told in zip(ascii_lowercase, notes.reasons, strict=False)),
    ]
    page = "\n".join([*parts, "", "## kcat", f"{findings.kcat[:1].upper()}{findings.kcat[1:]}.", ""])
    return "\n".join(line for long in page.split("\n") for line in wrapped(long))


def wrapped(line: str) -> list[str]:
    """Wrap a line of prose as all pages do; a row of a table stays one."""
    if line.startswith("|") or len(line) <= PROSE_MAX:
        return [line]
    indent = " " * (2 if line.startswith("- ") else line.find(" ") + 1 if line[0].isdigit() else 0)
    return textwrap.wrap(line, PROSE_MAX, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _grouped(found: dict[str, dict[str, dict[str, str]]], names: dict[str, str]) -> dict[str, str]:
    """Types that all readers treat alike share a line: its words, and one of them."""
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(repr([_kinds(found[reader][name]) for reader in found]), []).append(name)
    return {", ".join(names[name] for name in group): group[0] for group in alike.values()}


def _kinds(by_identity: dict[str, str]) -> list[str]:
    return [verdict if verdict.startswith(RIGHT) else "cannot" for verdict in by_identity.values()]
