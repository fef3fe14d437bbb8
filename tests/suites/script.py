"""A psql script as a sequence of statements and commands: psql's rules of where a statement ends,
and its variables.

Pure. Variables may change while the script runs, so each item is read when it is asked for; the
data of COPY ... FROM STDIN stands in the script too, and is taken by who runs the statement.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_STRING: Final = re.compile(r"'(?:[^']|'')*'")
_UNICODE: Final = re.compile(r"(?<![\w$])[uU]&$")
_E: Final = re.compile(r"(?<![\w$])[eE]$")
_ESCAPED: Final = re.compile(r"'(?:[^'\\]|\\.|'')*'", re.DOTALL)
_QUOTED: Final = re.compile(r'"(?:[^"]|"")*"')
_DOLLAR: Final = re.compile(r"\$(?:[A-Za-z_\x80-\U0010ffff][\w\x80-\U0010ffff]*)?\$")
_WORD: Final = re.compile(r"[A-Za-z_\x80-\U0010ffff][\w$\x80-\U0010ffff]*|\d[\w.]*|\$\d+")
_VARIABLE: Final = re.compile(r""":(?:(\w+)|'(\w+)'|"(\w+)"|\{\?(\w+)\})""")
_COMMENT: Final = re.compile(r"/\*|\*/")
_COMMAND: Final = re.compile(r"\\([^\s\\;]+)([^\n]*)")
_ROUTINE: Final = re.compile(r"\s*create\s+(?:or\s+replace\s+)?(?:function|procedure)\b", re.IGNORECASE)
_ARGUMENT: Final = re.compile(r"""'((?:[^'\\]|\\.|'')*)'|:'(\w+)'|:"(\w+)"|:\{\?(\w+)\}|:(\w+)|([^\s':\\]+|:)""")
WHOLE_LINE: Final = frozenset({"copy", "!", "if", "elif"})


@dataclass(frozen=True, slots=True)
class Statement:
    """What a semicolon has ended, or the end of the script."""

    text: str


@dataclass(frozen=True, slots=True)
class Command:
    """A backslash command with the statement that was begun before it."""

    name: str
    arguments: str
    begun: str


class Script:
    """The rest of a script that is still to be run."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._begun = ""

    def drop(self) -> None:
        """Forget the statement that was begun: a command has used it."""
        self._begun = ""

    def copy_data(self) -> str:
        """The lines up to `\\.`, from the next line on; the rest of this one comes behind them."""
        end = self._text.find("\n", self._at)
        rest, after = (self._text[self._at : end], end + 1) if end >= 0 else (self._text[self._at :], len(self._text))
        found = re.compile(r"^\\\.\r?$\n?", re.MULTILINE).search(self._text, after)
        stop, further = (found.start(), found.end()) if found else (len(self._text), len(self._text))
        data = self._text[after:stop]
        self._text, self._at = rest + "\n" + self._text[further:], 0
        return data

    def next(self, variables: Mapping[str, str], *, standard_strings: bool = True) -> Statement | Command | None:
        """The next item; None at the script's end."""
        brackets = blocks = 0
        while self._at < len(self._text):
            text, at = self._text, self._at
            char = text[at]
            if char == ";" and brackets <= 0 and blocks == 0:
                self._at += 1
                statement, self._begun = self._begun, ""
                if statement.strip():
                    return Statement(statement)
            elif char == "\\":
                if (command := self._command()) is not None:
                    return command
            elif char == ":":
                self._variable(variables)
            elif (end := _comment_end(text, at)) is not None:
                self._begun += " "
                self._at = end
            else:
                token = _token(text, at, escapes=self._escapes(standard_strings=standard_strings))
                brackets += (char in "([") - (char in ")]")
                blocks += self._block(token, blocks)
                self._begun += token
                self._at = at + len(token)
        statement, self._begun = self._begun, ""
        return Statement(statement) if statement.strip() else None

    def _command(self) -> Command | None:
        text, at = self._text, self._at
        if text[at + 1 : at + 2] in (";", ":"):
            self._begun += text[at + 1]
            self._at = at + 2
            return None
        found = _COMMAND.match(text, at)
        if found is None:  # `\\` ends a command's arguments
            self._at = at + 2
            return None
        name, rest = found.groups()
        if name not in WHOLE_LINE:
            rest = _up_to_command(rest)
        self._at = found.start(2) + len(rest)
        return Command(name, rest, self._begun)

    def _variable(self, variables: Mapping[str, str]) -> None:
        if self._text.startswith("::", self._at):
            self._begun += "::"
            self._at += 2
        elif (found := _VARIABLE.match(self._text, self._at)) and (value := variable(found, variables)) is not None:
            self._begun += value
            self._at = found.end()
        else:
            self._begun += ":"
            self._at += 1

    def _escapes(self, *, standard_strings: bool) -> bool:
        """Whether a quote that comes now begins a string with backslash escapes."""
        before = self._begun[-3:]
        return bool(_E.search(before)) or not (standard_strings or _UNICODE.search(before))

    def _block(self, token: str, blocks: int) -> int:
        """How much deeper in BEGIN ATOMIC ... END a word leads."""
        word = token.lower()
        if word not in ("begin", "case", "end") or not _ROUTINE.match(self._begun):
            return 0
        if word == "end":
            return -1 if blocks else 0
        return 1 if word == "begin" or blocks else 0


def variable(found: re.Match[str], variables: Mapping[str, str]) -> str | None:
    """What a reference becomes; None if there is no such variable."""
    plain, literal, identifier, asked = found.groups()
    if asked:
        return "TRUE" if asked in variables else "FALSE"
    value = variables.get(plain or literal or identifier)
    if value is None or plain:
        return value
    mark = "'" if literal else '"'
    return mark + value.replace(mark, mark * 2) + mark


def arguments(text: str, variables: Mapping[str, str]) -> list[str]:
    """A command's arguments: quoted, by variables, or plain; neighbours without a blank are one."""
    found: list[str] = []
    end = -1
    for match in _ARGUMENT.finditer(text):
        quoted, literal, identifier, asked, plain, word = match.groups()
        name = literal or identifier or plain
        if quoted is not None:
            part = re.sub(r"\\(.)|''", lambda m: {"n": "\n", "t": "\t", None: "'"}.get(m[1], m[1]), quoted)
        elif asked:
            part = "TRUE" if asked in variables else "FALSE"
        else:
            part = variables.get(name, match[0]) if name else word
        if match.start() == end:
            found[-1] += part
        else:
            found.append(part)
        end = match.end()
    return found


def _token(text: str, at: int, *, escapes: bool) -> str:
    char = text[at]
    patterns = {"'": _ESCAPED if escapes else _STRING, '"': _QUOTED, "$": _DOLLAR}
    if (pattern := patterns.get(char)) is not None and (found := pattern.match(text, at)) is not None:
        if char != "$":
            return found[0]
        end = text.find(found[0], found.end())
        return text[at : end + len(found[0])] if end >= 0 else text[at:]
    found = _WORD.match(text, at)
    return found[0] if found is not None else char


def _comment_end(text: str, at: int) -> int | None:
    if text.startswith("--", at):
        end = text.find("\n", at)
        return len(text) if end < 0 else end
    if not text.startswith("/*", at):
        return None
    depth = 0
    for found in _COMMENT.finditer(text, at):
        depth += 1 if found[0] == "/*" else -1
        if depth == 0:
            return found.end()
    return len(text)


def _up_to_command(rest: str) -> str:
    """Arguments end where another backslash begins, outside of quotes."""
    found = re.match(r"(?:'(?:[^'\\]|\\.|'')*'|[^\\'])*", rest)
    return found[0] if found is not None else rest
