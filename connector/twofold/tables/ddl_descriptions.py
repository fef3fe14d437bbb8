"""Keeps the tables' descriptions that DDL messages bring, as of the stream's position.

Pure. The source's event triggers write the messages. A message counts for later rows of its own
transaction, and for all rows once that transaction is committed. A run begins with the descriptions
in the pins. The present catalog answers for a table without a description.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from twofold.descriptions.ddl_message import DdlMessage, parse_ddl_message
from twofold.descriptions.description import Description
from twofold.descriptions.hidden_columns import MessageColumn, numbers_of
from twofold.source.messages import Relation
from twofold.source.published_tables import REPLICA_IDENTITIES
from twofold_common.positions import PreparedIdentity

DdlMessages = Mapping[int, DdlMessage]
"""The last DDL message of each table, by its oid."""
NO_DDL: DdlMessages = {}


class DdlDescriptions:
    """The tables' descriptions during one run. The thread that reads owns them."""

    def __init__(self, publication: str, kept: Iterable[Description] = (), *, has_messages: bool = True) -> None:
        """`kept`: the tables' descriptions where the run begins. Without DDL messages they tell
        partitions alone.
        """
        kept = tuple(kept)
        self._publication = publication
        self._known = {described.oid: described for described in kept if has_messages}
        self._partitions = _partitions_of(described for described in kept if described.partitions)
        self._prepared: dict[PreparedIdentity, DdlMessages] = {}

    def read(self, content: bytes) -> DdlMessage | None:
        """Return the content of a DDL message; None if it describes no table."""
        return parse_ddl_message(content, self._publication)

    def note(self, ddl: DdlMessages) -> None:
        """Note the DDL messages of a committed transaction."""
        self._known |= {oid: each.described for oid, each in ddl.items()}
        self._partitions |= _partitions_of(each.described for each in ddl.values())

    def look_again(self, looked: Mapping[int, Description]) -> None:
        """Take the catalog's descriptions of tables that changed without a DDL message."""
        self._known |= {oid: described for oid, described in looked.items() if oid in self._known}
        self._partitions |= _partitions_of(looked.values())

    def prepare(self, identity: PreparedIdentity, ddl: DdlMessages) -> None:
        """Keep the DDL messages of a prepared transaction until its outcome."""
        if ddl:
            self._prepared[identity] = ddl

    def resolve(self, identity: PreparedIdentity, *, committed: bool) -> None:
        """Note the outcome of a prepared transaction."""
        ddl = self._prepared.pop(identity, NO_DDL)
        if committed and ddl:
            self.note(ddl)

    def above(self, partition: Relation, own: DdlMessages) -> list[int]:
        """Return the tables that have this partition at the row's position, the root first.

        Without DDL messages: that had it when the catalog was last looked at before.
        """
        known = self._partitions
        if own:
            known = known | _partitions_of(each.described for each in own.values())
        found = [oid for oid, partitions in known.items() if partition.oid in partitions]
        return sorted(found, key=lambda oid: len(known[oid]), reverse=True)

    def find(self, relation: Relation, own: DdlMessages) -> Description | None:
        """Return the table's description; `own`: the DDL messages of the row's own transaction.

        None if the relation shows that a later command wrote no message.
        """
        described = own[relation.oid].described if relation.oid in own else self._known.get(relation.oid)
        if described is None or REPLICA_IDENTITIES.get(described.replica_identity) != relation.replica_identity:
            return None
        columns = [MessageColumn(column.name, column.type_oid) for column in relation.columns]
        return described if numbers_of(described.catalog_columns, columns) is not None else None


def _partitions_of(tables: Iterable[Description]) -> dict[int, frozenset[int]]:
    return {described.oid: described.partition_oids for described in tables}
