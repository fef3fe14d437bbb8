"""Makes the bookkeeping's records: progress, in-doubt ledger entries, and outcomes in commit
records.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from twofold.bridge.actions import LedgerState
from twofold.gids import ParsedGid
from twofold.runner.waiting_rows import PreparedRows
from twofold.source.identity import ServerIdentity
from twofold_avro.records import Prepared, PreparedOutcome, Progress
from twofold_common.positions import Lsn, PreparedIdentity


@dataclass(frozen=True, slots=True)
class ConnectorOrigin:
    """The source and the connector, as every progress record names them."""

    server: ServerIdentity
    slot: str
    pool: int

    def progress(self, applied_lsn: Lsn, sequence: int) -> Progress:
        return Progress(
            applied_lsn=applied_lsn,
            sequence=sequence,
            system_identifier=self.server.system_identifier,
            timeline=self.server.timeline,
            database=self.server.database,
            slot=self.slot,
            pool=self.pool,
            written_at=time.time_ns() // 1000,
        )


def ledger_entry(prepared: PreparedRows, state: LedgerState, sequence: int | None = None) -> Prepared:
    """Return a prepared transaction's ledger entry; `sequence` is its commit record's number, if it
    has one.
    """
    return Prepared(
        xid=prepared.identity.xid,
        gid=prepared.identity.gid,
        prepare_lsn=prepared.prepare_lsn,
        prepared_at=prepared.prepared_at_us,
        state=state.value,
        rows=prepared.rows.records,
        topics=prepared.topics,
        global_id=prepared.parsed.global_id,
        branch=prepared.parsed.branch,
        sequence=sequence,
    )


def outcome(
    identity: PreparedIdentity, prepare_lsn: Lsn, parsed: ParsedGid, commit_lsn: Lsn, at_us: int
) -> PreparedOutcome:
    """Return a prepared transaction's entry in its commit record."""
    return PreparedOutcome(
        id=identity.downstream_id(prepare_lsn),
        xid=identity.xid,
        gid=identity.gid,
        prepare_lsn=prepare_lsn,
        commit_lsn=commit_lsn,
        committed_at=at_us,
        global_id=parsed.global_id,
        branch=parsed.branch,
    )
