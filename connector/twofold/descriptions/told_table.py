"""`ToldTable`: what a message of the source's event triggers tells of a table. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass

from twofold.descriptions.hidden_columns import CatalogColumn

PREFIX = "twofold.ddl"
"""The prefix of the messages."""


@dataclass(frozen=True, slots=True)
class ToldTable:
    """A table behind a command, at the message's position in the stream."""

    oid: int
    replica_identity: str
    columns: tuple[CatalogColumn, ...]
    keys: tuple[frozenset[str], ...]
    """The columns of each index that could be the message key under replica identity full, in the
    order in which they are taken.
    """


def told_table(content: bytes) -> ToldTable | None:
    """Return what a message tells; None if it tells of no table.

    Anybody who may connect to the database can write such a message, also with other content. One
    without content keeps those before it apart from the rows behind.
    """
    try:
        table = json.loads(content)["table"]
        columns = tuple(CatalogColumn(c["number"], c["name"], c["type"], c["row"]) for c in table["columns"])
        names = {column.number: column.name for column in columns}
        keys = tuple(frozenset(names[number] for number in key["columns"]) for key in table["keys"] if key["usable"])
        return ToldTable(int(table["oid"]), str(table["replica_identity"]), columns, keys)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
