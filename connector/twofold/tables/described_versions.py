"""The catalogue of shapes: which versions of which tables the stream has described, and which of
them is committed.

Pure: nothing here asks a server.
"""

from __future__ import annotations

from twofold.kafka.row_batch import PROVISIONAL_KEY_ID
from twofold.tables.table_version import DescribedVersion, TableVersion
from twofold_avro.shapes import TableShape


class DescribedVersions:
    """The versions of one run. The thread that reads owns them."""

    def __init__(self) -> None:
        self._by_oid: dict[int, TableVersion] = {}
        self._numbers: dict[int, int] = {}
        self._descriptions = 0
        self._committed: dict[str, TableVersion] = {}
        self._uncommitted: dict[str, TableVersion] = {}
        """The latest described versions that are not committed yet."""
        self._provisional_id = PROVISIONAL_KEY_ID  # envelopes' follow it

    def next_provisional_id(self) -> int:
        self._provisional_id += 1
        return self._provisional_id

    def count(self) -> int:
        """Return the ordinal of the description that was just read."""
        self._descriptions += 1
        return self._descriptions

    def like(self, shape: TableShape, topic: str) -> TableVersion | None:
        """Return the known version of this shape.

        The server describes a new shape again with each streamed part of a transaction in progress.
        """
        for known in (self._committed.get(topic), self._uncommitted.get(topic)):
            if known and known.shape == shape:
                return known
        return None

    def add(self, topic: str, table: TableVersion) -> None:
        """Keep a described version that is not committed yet."""
        self._uncommitted[topic] = table

    def commit(self, topic: str, table: TableVersion) -> None:
        self._committed[topic] = table
        self._uncommitted.pop(topic, None)

    def forget(self, topic: str) -> None:
        """Forget the topic's versions: the next description is examined again."""
        self._committed.pop(topic, None)
        self._uncommitted.pop(topic, None)

    def drop_uncommitted(self, topic: str) -> None:
        """Forget the version: a later description is examined again."""
        self._uncommitted.pop(topic, None)

    def committed(self, topic: str) -> TableVersion | None:
        return self._committed.get(topic)

    def adopt(self, described: dict[int, DescribedVersion]) -> None:
        """Make a streamed transaction's descriptions hold for all, unless later ones exist."""
        for oid, version in described.items():
            if version.number > self._numbers.get(oid, 0):
                self.set_version(oid, version)

    def set_version(self, oid: int, version: DescribedVersion) -> None:
        """Make a description hold for all rows that follow."""
        self._by_oid[oid] = version.table
        self._numbers[oid] = version.number

    def current(self, oid: int) -> TableVersion | None:
        """Return the version of the rows that come now."""
        return self._by_oid.get(oid)
