"""Foreign text at the edges: terminal, logs, page, alerts.

Names of tables and gids are whatever somebody with a right to make them wrote, and messages of
servers repeat them. Line breaks forge lines of a log; escape sequences rule a terminal; marks of
direction turn text around. So all printed text passes here, at the edge, and no code before the
edge needs to think of it. Text that a person is meant to copy is written so that nothing of it
changes here.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import traceback
from collections.abc import Callable, Collection, Mapping
from types import TracebackType
from typing import Any

_INDENT = "  "


class TextLines(logging.Formatter):
    """A line for each record; what follows a line break is indented."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record), lines=True)


def counted(many: int, noun: str) -> str:
    """Return the number with its noun, in the plural except for one."""
    return f"{many} {noun}{'s' * (many != 1)}"


def keep_stderr_printable() -> None:
    """Make printable what Python itself writes to stderr: the traceback of an unforeseen error, and
    log lines of a command that has set up no log.
    """
    sys.excepthook = _print_traceback
    threading.excepthook = _print_traceback_of_thread
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(TextLines())


def _print_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    text = "".join(traceback.format_exception(kind, error, trace)).rstrip("\n")
    print(printable(text, lines=True), file=sys.stderr)  # noqa: T201


def _print_traceback_of_thread(told: threading.ExceptHookArgs) -> None:
    if told.exc_value is not None and not isinstance(told.exc_value, SystemExit):
        name = told.thread.name if told.thread is not None else "unknown"
        print(f"Exception in thread {printable(name)}:", file=sys.stderr)  # noqa: T201
        _print_traceback(told.exc_type, told.exc_value, told.exc_traceback)


def printable(text: str, *, lines: bool = False) -> str:
    """Return the text with its invisible characters as escapes, `\\x1b` for instance.

    `lines`: it has line breaks of our own. They stay, and the text behind a line break is indented,
    so that it is no line by itself.
    """
    if lines:
        first, *others = text.split("\n")
        indented = (each if each.startswith(_INDENT) or not each else _INDENT + each for each in others)
        return "\n".join(map(printable, (first, *indented)))
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _escape(each) for each in text)


def printable_json(line: str) -> str:
    """Return JSON on one line with its invisible characters as JSON's escapes: the same values."""
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in line)


def printable_values(value: Any, messages: Collection[str] = (), *, lines: bool = False) -> Any:
    """Return lists and dictionaries with all their texts printable, names included.

    `messages`: the names of texts in which line breaks of our own stay.
    """
    match value:
        case str():
            return printable(value, lines=lines)
        case dict():
            return {
                printable(name): printable_values(each, messages, lines=name in messages)
                for name, each in value.items()
            }
        case list() | tuple():
            return [printable_values(each, messages, lines=lines) for each in value]
        case _:
            return value


def sql_literal(text: str) -> str:
    """Return a literal of SQL that is printable, and exactly the text."""
    if text.isprintable() and "\\" not in text:
        return "'" + text.replace("'", "''") + "'"
    return "E'" + _spelled(text, {"'": "''", "\\": "\\\\"}) + "'"


def toml_string(text: str) -> str:
    """Return a string of TOML that is printable, and exactly the text."""
    return '"' + _spelled(text, {'"': '\\"', "\\": "\\\\"}) + '"'


def shell_argument(text: str) -> str:
    """Return an argument of bash that is printable, and exactly the text."""
    return "$'" + _spelled(text, {"'": "\\'", "\\": "\\\\"}, _by_bytes) + "'"


def _escape(character: str) -> str:
    number = ord(character)
    if number < 0x100:
        return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(character, f"\\x{number:02x}")
    return _by_number(character)


def _by_number(character: str) -> str:
    number = ord(character)
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def _by_bytes(character: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in character.encode())


def _spelled(text: str, marks: Mapping[str, str], invisible: Callable[[str], str] = _by_number) -> str:
    """Return the text with these marks, and its invisible characters, in another spelling."""
    return "".join(marks.get(each) or (each if each.isprintable() else invisible(each)) for each in text)
