"""A prepared transaction as the collector hands it over."""

from __future__ import annotations

from typing import Any, cast

from twofold.kafka.row_batch import RowBatch
from twofold.source.messages import Prepare
from twofold.spool import Spool
from twofold.stream.source_transaction import SourceTransaction
from twofold.tables.table_version import TransactionInfo
from twofold_common.positions import Lsn, PreparedIdentity


def prepared_transaction(
    identity: PreparedIdentity,
    spool: Spool,
    batch: RowBatch | None = None,
    *,
    prepare_lsn: int | None = None,
    at_us: int = 0,
    topics: tuple[str, ...] = (),
) -> SourceTransaction:
    """Prepared at its xid, if no position is given."""
    at = Lsn(identity.xid if prepare_lsn is None else prepare_lsn)
    info = TransactionInfo(identity.xid, at_us, identity.downstream_id(at), identity.gid)
    transaction = SourceTransaction(info, batch or RowBatch(), cast("Any", None), spool)
    transaction.prepare = Prepare(at, Lsn(at + 1), at_us, identity)
    transaction.event_topics = dict.fromkeys(topics)
    transaction.complete()
    return transaction
