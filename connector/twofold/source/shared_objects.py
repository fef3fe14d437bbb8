"""Notes who uses an object that `init` has made: the object's comment names the slots.

The connectors of a database share its publication and its event triggers. Each `init` notes its
slot, each `reset` takes its own away, and the last one drops the object. Changes are made on the
primary, one at a time: of two at once neither forgets the other's slot.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from psycopg import sql

from twofold.source.connection import PlainConnection
from twofold.source.primary import connect_to_primary

_LOCK = "SELECT pg_catalog.pg_advisory_xact_lock(8317253)"
_COMMENT = {
    "PUBLICATION": "SELECT pg_catalog.obj_description(oid, 'pg_publication') FROM pg_catalog.pg_publication WHERE pubname = %s",
    "SCHEMA": "SELECT pg_catalog.obj_description(oid, 'pg_namespace') FROM pg_catalog.pg_namespace WHERE nspname = %s",
}


@dataclass(frozen=True, slots=True)
class SharedObject:
    """An object that several connectors use."""

    kind: Literal["PUBLICATION", "SCHEMA"]
    name: str
    mark: str
    """The comment begins so, if `init` has made the object."""

    def users(self, connection: PlainConnection) -> set[str] | None:
        """Return the slots that use the object, as far as each `init` has noted its own; None:
        `init` has not made it.
        """
        row = connection.execute(_COMMENT[self.kind], (self.name,)).fetchone()
        text = (row and row[0]) or ""
        if not text.startswith(self.mark):
            return None
        try:
            return {*map(str, json.loads(text.removeprefix(self.mark)))}
        except (ValueError, TypeError):  # a person has changed it
            return set()

    def comment(self, users: Collection[str]) -> sql.Composed:
        """Return the statement that notes these slots."""
        return sql.SQL("COMMENT ON {} {} IS {}").format(
            sql.SQL(self.kind), sql.Identifier(self.name), sql.Literal(self.mark + json.dumps(sorted(users)))
        )


@contextmanager
def changing(conninfo: str) -> Iterator[PlainConnection]:
    """Give a session on the primary in which nobody else changes such an object meanwhile.

    Its transaction ends with the block.
    """
    with connect_to_primary(conninfo) as connection, connection.transaction():
        connection.execute("SET TRANSACTION READ WRITE")
        connection.execute(_LOCK)
        yield connection
