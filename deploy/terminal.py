"""Replay what a program wrote to a terminal: which line showed what, and when. Pure.

It knows what a program that prints lines and a spinner uses: colours, carriage returns, the erasing
of a line, steps upwards. It has no scrolling: a line keeps its number, however long the output
becomes.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

_TOKEN = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)|(.)", re.DOTALL)
_SPINNER = re.compile("[\u2800-\u28ff]")
_COLOURS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")


class Output(NamedTuple):
    """Bytes that came at once, with seconds since the start."""

    at: float
    data: bytes


class Style(NamedTuple):
    """How characters look; no colour: as the terminal has it."""

    colour: str = ""
    bold: bool = False


Line = tuple[tuple[str, Style], ...]
"""Neighbouring characters of one style together."""


class Shown(NamedTuple):
    """What a line showed from this time on."""

    at: float
    row: int
    line: Line


@dataclass(slots=True)
class _Screen:
    columns: int
    rows: list[list[tuple[str, Style]]] = field(default_factory=lambda: [[]])
    row: int = 0
    column: int = 0
    style: Style = field(default_factory=Style)

    def write(self, text: str) -> set[int]:
        """Take the text; give the rows that it touched."""
        touched = set()
        for codes, command, control, plain, _ in _TOKEN.findall(text):
            if command:
                self._command(command, codes)
            elif control == "\r":
                self.column = 0
            elif control == "\n":
                self._go(self.row + 1)
            for letter in plain:
                self._put(letter)
                touched.add(self.row)
            touched.add(self.row)
        return touched

    def _command(self, command: str, codes: str) -> None:
        if command == "m":
            for code in codes.split(";"):
                self.style = _styled(self.style, int(code or 0))
        elif command == "A":
            self.row = max(0, self.row - int(codes or 1))
        elif command == "K":
            del self.rows[self.row][0 if codes == "2" else self.column :]

    def _go(self, row: int) -> None:
        self.row = row
        while len(self.rows) <= row:
            self.rows.append([])

    def _put(self, letter: str) -> None:
        if self.column >= self.columns:
            self._go(self.row + 1)
            self.column = 0
        line = self.rows[self.row]
        line.extend([(" ", Style())] * (self.column + 1 - len(line)))
        line[self.column] = (letter, self.style)
        self.column += 1


def _styled(style: Style, code: int) -> Style:
    match code:
        case 0:
            return Style()
        case 1:
            return style._replace(bold=True)
        case _ if 30 <= code <= 37:
            return style._replace(colour=_COLOURS[code - 30])
        case _:
            return style


def replay(written: Iterable[Output], columns: int) -> list[Shown]:
    """Each change of a line, in order. A spinner that turns is no change."""
    screen, decoder = _Screen(columns), codecs.getincrementaldecoder("utf-8")(errors="replace")
    last: dict[int, Line] = {}
    changes = []
    for at, data in written:
        for row in sorted(screen.write(decoder.decode(data))):
            line = _joined(screen.rows[row])
            if last.get(row, ()) != line:
                last[row] = line
                changes.append(Shown(at, row, line))
    return changes


def _joined(letters: list[tuple[str, Style]]) -> Line:
    parts: list[tuple[str, Style]] = []
    for letter, style in letters:
        shown = _SPINNER.sub("\u280b", letter)
        if parts and parts[-1][1] == style:
            parts[-1] = parts[-1][0] + shown, style
        else:
            parts.append((shown, style))
    if parts and not "".join(text for text, _ in parts).strip():
        return ()
    return tuple(parts)
