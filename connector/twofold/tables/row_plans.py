"""Makes the plans that encode a table's rows, with what all tables of a connector share."""

from __future__ import annotations

from dataclasses import replace

from twofold import __version__
from twofold.kafka.batch import PROVISIONAL_KEY_ID
from twofold_avro.shapes import TableShape
from twofold_avro.transcode import RowPlan, ServerConstants


class RowPlans:
    """The plans of one run. A plan serves one thread."""

    def __init__(
        self, prefix: str, database: str, *, tombstones: bool, placeholders: bool, hash_key: bytes = b""
    ) -> None:
        self._server = ServerConstants(version=__version__, prefix=prefix, db=database, hash_key=hash_key)
        self._tombstones = tombstones
        self._placeholders = placeholders

    def make(self, shape: TableShape, partitions: int, key_id: int, value_id: int) -> RowPlan:
        """Return a new plan for rows of this shape, with these schema ids."""
        return RowPlan(
            shape,
            key_schema_id=None if shape.keyless else key_id,
            value_schema_id=value_id,
            partitions=partitions,
            server=self._server,
            tombstones=self._tombstones,
            placeholders=self._placeholders,
        )

    def make_void(self, shape: TableShape, value_id: int) -> RowPlan:
        """Return a plan without a key for rows that are passed over, because they may lack its
        values.
        """
        columns = tuple(replace(column, in_key=False) for column in shape.columns)
        return self.make(replace(shape, columns=columns), 1, PROVISIONAL_KEY_ID, value_id)
