"""The SQL that PostgreSQL's tests of logical replication run on their publisher, taken out of their
Perl.

The tests themselves cannot be used: they need Perl's framework, subscribers, and servers that they
stop and configure. What can be is each literal that `$node_publisher->safe_psql('postgres', ...)`
is given, in the order of the file. Left out and counted are literals into which Perl would put a
variable, what is no literal at all, and what configures the server: with a standby that must
confirm, and is not there, no commit would ever end.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_CALL: Final = re.compile(r"""\$node_publisher->(?:safe_)?psql\(\s*'postgres',\s*""")
_QUOTED: Final = re.compile(r'"((?:[^"\\]|\\.)*)"|\'((?:[^\'\\]|\\.)*)\'', re.DOTALL)
_BRACKETED: Final = re.compile(r"(qq?)([({\[])")
_CONFIGURES: Final = "ALTER SYSTEM"
_CLOSING: Final = {"(": ")", "{": "}", "[": "]"}
_INTERPOLATED: Final = re.compile(r"(?<!\\)[$@][A-Za-z_{]")


@dataclass(frozen=True, slots=True)
class Publisher:
    """What one file has for its publisher."""

    scripts: tuple[str, ...]
    left_out: int


def publisher(text: str) -> Publisher:
    """The literals that can be run as they are."""
    scripts, left_out = [], 0
    for call in _CALL.finditer(text):
        script = _literal(text, call.end())
        if script is None or _CONFIGURES in script:
            left_out += 1
        else:
            scripts.append(script)
    return Publisher(tuple(scripts), left_out)


def _literal(text: str, at: int) -> str | None:
    """The one literal that begins here; None if it is something else, or only a part of the
    argument.
    """
    if (found := _QUOTED.match(text, at)) is not None:
        content, end, double = found[1] if found[2] is None else found[2], found.end(), found[2] is None
    elif (found := _BRACKETED.match(text, at)) is not None:
        end = _closing(text, found.end(), found[2])
        content, double = text[found.end() : end - 1], found[1] == "qq"
    else:
        return None
    if not re.match(r"\s*[,)]", text[end:]) or (double and _INTERPOLATED.search(content)):
        return None
    if not double:
        return content
    return re.sub(r"\\(.)", lambda m: {"n": "\n", "t": "\t"}.get(m[1], m[1]), content, flags=re.DOTALL)


def _closing(text: str, at: int, opening: str) -> int:
    depth = 1
    while depth:
        depth += (text[at] == opening) - (text[at] == _CLOSING[opening])
        at += 1
    return at
