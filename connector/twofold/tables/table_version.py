"""`TableVersion`: one version of a published table, with the plan that encodes its rows.

This module also has the facts that a transaction's rows share, and the refusals of a table's
changes. `tables` makes and keeps versions. Nothing here asks a server.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from twofold import __version__
from twofold.errors import Refused
from twofold.kafka.row_batch import PROVISIONAL_KEY_ID, VOID, Record, RowBatch
from twofold.outbox.outbox import OutboxTable
from twofold_avro.shapes import TableShape
from twofold_avro.transcode import RowPlan, ServerConstants, TransactionHeader
from twofold_common.gids import OPAQUE, ParsedGid
from twofold_common.positions import Lsn
from twofold_common.table_names import reload_command, table_argument

CHANGED_SHAPE = "it changes a table's definition"
IN_BACKFILL = "it touches a table in backfill"
KEYLESS = "it touches a table without a message key"


class TransactionInfo(NamedTuple):
    """The facts that all changes of one transaction share. One is made for each transaction, and a
    tuple in a third of the time that a frozen dataclass takes.
    """

    xid: int | None
    ts_us: int
    transaction_id: str | None
    gid: str | None
    parsed: ParsedGid = OPAQUE
    """The gid's global id and branch."""
    commit_lsn: Lsn | None = None
    """None: the rows may be written before the outcome, or belong to no transaction."""

    def header(self) -> TransactionHeader:
        parsed = self.parsed
        gid = self.gid, parsed.global_id, parsed.branch
        return TransactionHeader(self.xid, self.ts_us, self.transaction_id, *gid, self.commit_lsn)


@dataclass(slots=True, eq=False)
class TableVersion:
    """One version of a published table."""

    shape: TableShape
    topic: str
    """VOID: no row is published. Either the rows do not fit the topic and a later restart loads the
    table again, or the table is gone.
    """
    partitions: int
    plan: RowPlan
    provisional_id: int
    """The place of the envelope schema's id in rows that were encoded before it was committed."""
    is_in_backfill: Callable[[str], bool]
    """Whether the topic's table is in backfill now."""
    ids: tuple[int, int] | None = None
    """The ids of key and envelope, once committed."""
    passed_over: str | None = None
    """The topic of rows that are passed over; None if the version is published."""
    flaw: Refused | None = None
    """The refusal of a version whose rows are not published, because a partition lacks something. A
    restart of the topic repairs that.
    """
    outbox: OutboxTable | None = None
    """The rule of an outbox table: the table's inserts are events, and no rows are published."""
    keyless: bool = field(init=False)

    def __post_init__(self) -> None:
        self.keyless = self.shape.keyless

    @property
    def name(self) -> str:
        return _name(self.shape)

    def pass_over(self, plan: RowPlan) -> None:
        """Publish none of the version's rows."""
        self.passed_over = self.topic
        self.topic, self.partitions, self.plan = VOID, 1, plan

    @property
    def committed(self) -> bool:
        return self.ids is not None

    @property
    def void(self) -> bool:
        return self.topic == VOID

    def lists(self, batch: RowBatch) -> list[list[Record]]:
        """Return the batch's lists for finished rows.

        Without a key all rows lie in the topic's first partition, and so do truncates.
        """
        return batch.lists(self.topic, self.partitions)[: 1 if self.keyless else None]

    @property
    def registered_ids(self) -> tuple[int, int]:
        assert self.ids is not None, "rows are published when their shapes are registered"
        return self.ids

    @property
    def park_reason(self) -> str | None:
        """The rule that forbids opening a prepared transaction that touches the table."""
        if self.outbox is not None:
            return None
        if not self.committed:
            return CHANGED_SHAPE
        if self.is_in_backfill(self.topic):
            return IN_BACKFILL
        return KEYLESS if self.keyless else None


@dataclass(frozen=True, slots=True)
class DescribedVersion:
    """A Relation message's version, with its ordinal; a later one wins."""

    table: TableVersion
    number: int


class KeyChanged(Refused):
    """Rows have another message key than their topic."""

    def __init__(self, shape: TableShape) -> None:
        hashed = "restore its former policy.columns and policy.key_file, or " if _is_hashed(shape) else ""
        super().__init__(
            f"the message key of table {_name(shape)} is not what it was",
            at_stake="rows of one key would lie in two partitions, and their order would be lost",
            repair=f"{hashed}start the topic over: {_start_over(shape)} (undoing the change is not enough: a row made under it waits to be published)",
        )


def key_id_changed(shape: TableShape, was: int | None, now: int | None) -> Refused:
    return Refused(
        f"the registry has the message key of table {_name(shape)} as id {now}; it was id {was}",
        at_stake="the id is part of the key's bytes: rows of one key would lie in two partitions, and their order would be lost",
        repair=f"restore the registry with its former ids, or start the topic over: {_start_over(shape)}",
    )


def _start_over(shape: TableShape) -> str:
    """Return how a person starts the table's topic over. The load of a hashed key is refused."""
    start = reload_command(shape.schema, shape.table)
    if not _is_hashed(shape):
        return start
    cancel = f"twofold backfill cancel {table_argument(shape.schema, shape.table)}"
    return f"{start}; rows are not loaded in the order of a hash, so when its load is refused: {cancel}; each row then comes when it changes"


def _is_hashed(shape: TableShape) -> bool:
    return any(column.policy for column in shape.key)


def _name(shape: TableShape) -> str:
    return f"{shape.schema}.{shape.table}"


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
        """Return a plan without a key, whose values rows that are passed over may lack."""
        columns = tuple(replace(column, in_key=False) for column in shape.columns)
        return self.make(replace(shape, columns=columns), 1, PROVISIONAL_KEY_ID, value_id)
