"""`TableVersion`: one version of a published table, with the plan that encodes its rows; what all rows of a transaction share; and why a change of a table is refused.

Made and kept by `tables`. Nothing here asks anybody.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from twofold import gids
from twofold.errors import Refused
from twofold.gids import ParsedGid
from twofold.sink.batch import VOID, Record, RowBatch
from twofold_avro.shapes import TableShape
from twofold_avro.transcode import RowPlan, TransactionHeader

CHANGED_SHAPE = "it changes a table's definition"
IN_BACKFILL = "it touches a table in backfill"
KEYLESS = "it touches a table without a message key"


@dataclass(frozen=True, slots=True)
class TransactionInfo:
    """What all changes of one transaction share."""

    xid: int | None
    ts_us: int
    transaction_id: str | None
    gid: str | None

    @property
    def parsed(self) -> ParsedGid:
        """What the gid says."""
        return gids.parse(self.gid) if self.gid is not None else ParsedGid()

    def header(self) -> TransactionHeader:
        parsed = self.parsed
        return TransactionHeader(self.xid, self.ts_us, self.transaction_id, self.gid, parsed.global_id, parsed.branch)


@dataclass(slots=True, eq=False)
class TableVersion:
    """One version of a published table."""

    shape: TableShape
    topic: str
    """VOID: its rows do not fit its topic. That starts anew, and its load behind them brings what is true of them; or the table is gone."""
    partitions: int
    plan: RowPlan
    provisional_id: int
    """Stands for its envelope schema's id in rows that were encoded before it was committed."""
    in_backfill: Collection[str]
    """The topics of all tables that are."""
    ids: tuple[int, int] | None = None
    """Of key and envelope, once committed."""
    passed_over: str | None = None
    """The topic that rows of it were meant for, if none of them is published."""
    keyless: bool = field(init=False)

    def __post_init__(self) -> None:
        self.keyless = self.shape.keyless

    @property
    def name(self) -> str:
        return _name(self.shape)

    def pass_over(self, plan: RowPlan) -> None:
        """None of its rows is published."""
        self.passed_over = self.topic
        self.topic, self.partitions, self.plan = VOID, 1, plan

    @property
    def committed(self) -> bool:
        return self.ids is not None

    @property
    def void(self) -> bool:
        return self.topic == VOID

    def lists(self, batch: RowBatch) -> list[list[Record]]:
        """Those of the batch for finished rows: without a key all lie in the topic's first partition, and so do truncates."""
        return batch.lists(self.topic, self.partitions)[: 1 if self.keyless else None]

    @property
    def registered_ids(self) -> tuple[int, int]:
        assert self.ids is not None, "rows are published when their shapes are registered"
        return self.ids

    @property
    def park_reason(self) -> str | None:
        """Why a prepared transaction that touches it must not be opened."""
        if not self.committed:
            return CHANGED_SHAPE
        if self.topic in self.in_backfill:
            return IN_BACKFILL
        return KEYLESS if self.keyless else None


@dataclass(frozen=True, slots=True)
class DescribedVersion:
    """What a Relation message said, and the how manieth it was."""

    table: TableVersion
    number: int


class KeyChanged(Refused):
    """Rows have another message key than their topic."""

    def __init__(self, shape: TableShape) -> None:
        super().__init__(
            f"the message key of table {_name(shape)} is not what it was",
            at_stake="rows of one key would lie in two partitions, and their order would be lost",
            repair=f"start the topic anew: twofold backfill start {_name(shape)} (to undo the change is not enough: a row made under it waits to be published)",
        )


def key_id_changed(shape: TableShape, was: int | None, now: int | None) -> Refused:
    return Refused(
        f"the registry knows the message key of table {_name(shape)} by id {now}, and it was {was}",
        at_stake="the id is part of the key's bytes: rows of one key would lie in two partitions, and their order would be lost",
        repair=f"restore the registry with its former ids, or start the topic anew: twofold backfill start {_name(shape)}",
    )


def misread_columns(shape: TableShape, columns: list[str]) -> Refused:
    return Refused(
        f"table {_name(shape)}: the type of {', '.join(columns)} has changed so that readers of the new schema would take the values written before for others",
        at_stake="a decimal's new scale, for one, moves the point in every row that is in the topic already; no registry notices",
        repair=f"delete the table's topic and the registry's subject of its values, then have both made anew: twofold backfill start {_name(shape)} (to undo the change is not enough: a row made under it waits to be published)",
    )


def _name(shape: TableShape) -> str:
    return f"{shape.schema}.{shape.table}"
