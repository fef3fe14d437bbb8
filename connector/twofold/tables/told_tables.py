"""Keeps the tables' descriptions of the source's event triggers, as of the stream's position.

Pure. A message counts for later rows of its own transaction, and for all once that transaction is
committed. A run begins with the pins' descriptions, which are of the position where it begins. The
present catalog answers for a table without a description.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from twofold.descriptions.description import Description
from twofold.descriptions.hidden_columns import SaidColumn, numbers_of
from twofold.descriptions.told_table import ToldTable, told_table
from twofold.source.messages import Relation
from twofold_common.positions import PreparedIdentity

Told = Mapping[int, ToldTable]
"""Tables by their oids."""
NOTHING_TOLD: Told = {}
_IDENTITIES = {"d": "default", "i": "index", "f": "full", "n": "nothing"}


class ToldTables:
    """The tables of one run. The thread that reads owns them."""

    def __init__(self, publication: str, kept: Iterable[Description] = ()) -> None:
        """`kept`: the tables' descriptions where the run begins."""
        self._publication = publication
        self._known = {described.oid: described for described in kept}
        self._prepared: dict[PreparedIdentity, Told] = {}

    def read(self, content: bytes) -> ToldTable | None:
        """Return what a message tells; None if it tells of no table."""
        return told_table(content, self._publication)

    def note(self, told: Told) -> None:
        """Note what a committed transaction tells."""
        self._known |= {oid: each.described for oid, each in told.items()}

    def look_again(self, looked: Mapping[int, Description]) -> None:
        """Note that no message told how these tables became what the catalog has."""
        self._known |= {oid: described for oid, described in looked.items() if oid in self._known}

    def prepare(self, identity: PreparedIdentity, told: Told) -> None:
        """Keep what a prepared transaction tells until its outcome."""
        if told:
            self._prepared[identity] = told

    def resolve(self, identity: PreparedIdentity, *, committed: bool) -> None:
        """Note the outcome of a prepared transaction."""
        told = self._prepared.pop(identity, NOTHING_TOLD)
        if committed:
            self.note(told)

    def find(self, relation: Relation, own: Told) -> Description | None:
        """Return what is known of the table; `own`: what the transaction itself tells.

        None where the relation shows that a later command was not told.
        """
        told = own[relation.oid].described if relation.oid in own else self._known.get(relation.oid)
        if told is None or _IDENTITIES.get(told.replica_identity) != relation.replica_identity:
            return None
        said = [SaidColumn(column.name, column.type_oid) for column in relation.columns]
        return told if numbers_of(told.catalog_columns, said) is not None else None
