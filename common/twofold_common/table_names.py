"""Table names as a person writes them: in settings, and as arguments of a command.

`schema.table` needs quotes only where it would have two meanings: a part with a dot, or with a
double quote at its beginning, is written as in SQL, `"a.b".c`. Everything else is taken literally.
"""

from __future__ import annotations

import re
import shlex

from twofold_common.printable import shell_argument

_QUOTED = re.compile(r'"((?:[^"]|"")*)"')


def table_name(schema: str, table: str) -> str:
    """Return the table's name, with quotes where it needs them."""
    return f"{_part(schema)}.{_part(table)}"


def table_argument(schema: str, table: str) -> str:
    """Return the table's name as an argument of a shell's command."""
    name = table_name(schema, table)
    return shlex.quote(name) if name.isprintable() else shell_argument(name)


def reload_command(schema: str, table: str) -> str:
    """Return the command that loads a table again, as a person types it."""
    return f"twofold backfill start {table_argument(schema, table)}"


def split_table_name(name: str) -> tuple[str, str] | None:
    """Return schema and table; None if the name has only one part."""
    if quoted := _QUOTED.match(name):
        schema, rest = _unquoted(quoted[0]), name[quoted.end() :]
        dot, table = rest[:1], rest[1:]
    else:
        schema, dot, table = name.partition(".")
    if dot != "." or not schema or not table:
        return None
    return schema, _unquoted(table) if _QUOTED.fullmatch(table) else table


def quote_identifier(*names: str) -> str:
    """Return a name, or its parts, as SQL writes it, with quotes whether or not it needs them."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def sql_identifier(*names: str) -> str:
    """Return a name of SQL, or its parts, that is printable, and exactly the name: of a statement
    that a person is meant to copy.
    """
    return ".".join(map(_printable_identifier, names))


def quote_literal(text: str) -> str:
    """Return a text as SQL writes it where standard_conforming_strings is on."""
    return "'" + text.replace("'", "''") + "'"


def _printable_identifier(name: str) -> str:
    quoted = quote_identifier(name)
    return quoted if name.isprintable() else "U&" + "".join(map(_identifier_character, quoted))


def _identifier_character(character: str) -> str:
    if character == "\\":
        return "\\\\"
    return character if character.isprintable() else f"\\+{ord(character):06x}"


def _part(name: str) -> str:
    return quote_identifier(name) if "." in name or name.startswith('"') else name


def _unquoted(name: str) -> str:
    return name[1:-1].replace('""', '"')
