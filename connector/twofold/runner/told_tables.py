"""What the messages of the source's event triggers tell of tables, at the stream's position.

Pure. A message counts behind it in its own transaction, and for all once that is committed. A run
knows nothing of a table before its first message: the catalog of now answers then.
"""

from __future__ import annotations

from collections.abc import Mapping

from twofold.descriptions.hidden_columns import SaidColumn, numbers_of
from twofold.descriptions.told_table import ToldTable
from twofold.source.messages import Relation
from twofold_common.positions import PreparedIdentity

Told = Mapping[int, ToldTable]
"""Tables by their oids."""
NOTHING_TOLD: Told = {}
_IDENTITIES = {"d": "default", "i": "index", "f": "full", "n": "nothing"}


class ToldTables:
    """The tables of one run. The thread that reads owns them."""

    def __init__(self) -> None:
        self._told: dict[int, ToldTable] = {}
        self._prepared: dict[PreparedIdentity, Told] = {}

    def note(self, told: Told) -> None:
        """Note what a committed transaction tells."""
        self._told |= told

    def prepare(self, identity: PreparedIdentity, told: Told) -> None:
        """Keep what a prepared transaction tells until its outcome."""
        if told:
            self._prepared[identity] = told

    def resolve(self, identity: PreparedIdentity, *, committed: bool) -> None:
        """Note the outcome of a prepared transaction."""
        told = self._prepared.pop(identity, NOTHING_TOLD)
        if committed:
            self.note(told)

    def find(self, relation: Relation, own: Told) -> ToldTable | None:
        """Return what is told of the table; `own`: what the transaction itself tells.

        None where the relation shows that a later command was not told.
        """
        told = own.get(relation.oid) or self._told.get(relation.oid)
        if told is None or _IDENTITIES.get(told.replica_identity) != relation.replica_identity:
            return None
        said = [SaidColumn(column.name, column.type_oid) for column in relation.columns]
        return told if numbers_of(told.columns, said) is not None else None
