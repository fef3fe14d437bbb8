"""Names rows that cannot be published, and offers the command that skips such a row.

`lives.skipped_rows` decides which row a command names. This module names a raw row, or the record
of a row, and writes the refusals with the command filled in.
"""

from __future__ import annotations

from collections.abc import Callable

from twofold.errors import MalformedMessage, Refused, TwofoldError
from twofold.kafka.record_sizes import RecordTooLarge
from twofold.kafka.row_batch import Record
from twofold.lives.skipped_rows import name_by_bytes, name_by_key, name_by_size
from twofold.source.session import Keepalive, Received
from twofold.tables.table_version import TableVersion
from twofold_avro.errors import MalformedRow
from twofold_avro.records import Pin
from twofold_avro.transcode import RowPlan, TransactionHeader
from twofold_avro.wire import HEADER_BYTES
from twofold_common.positions import Lsn, format_lsn
from twofold_common.table_names import table_argument


def read_keys(plan: RowPlan, payload: bytes, oid_at: int) -> tuple[bytes, ...]:
    """Return the message keys of a raw row without their schema's id, the new key last.

    A malformed row, or a row without a key, has none.
    """
    try:
        keys = plan.keys_of(payload, oid_at)
    except ValueError:
        return ()
    return tuple(key[HEADER_BYTES:] for key in keys if key is not None)


def name_raw(keys: tuple[bytes, ...], lsn: int, payload: bytes, oid_at: int) -> str:
    """Return the name of a raw row with these keys."""
    return name_by_key(lsn, keys[-1]) if keys else name_by_bytes(lsn, payload[oid_at + 4 :])


def names_of_record(lsn: int, record: Record, *raw_names: str) -> tuple[str, ...]:
    """Return the names of the record of a row; `raw_names`: those of the raw row."""
    if (key := record["key"]) is not None:
        return (name_by_key(lsn, key[HEADER_BYTES:]),)
    return name_by_size(len(record["value"])), *raw_names


def offer(refusal: Refused, table: TableVersion, lsn: int, row: str) -> Refused:
    """Return the refusal with one more repair: the command that skips a row."""
    return _offer(refusal, _argument(table), lsn, row)


def _offer(refusal: Refused, table: str, lsn: int, row: str) -> Refused:
    return Refused(refusal.what, at_stake=refusal.at_stake, repair=f"{refusal.repair}; or {_way_out(table, lsn, row)}")


def offer_raw(refusal: Refused, table: TableVersion, lsn: int, payload: bytes, oid_at: int) -> Refused:
    """Return the refusal of a raw row with the command that skips it."""
    name = name_raw(read_keys(table.plan, payload, oid_at), lsn, payload, oid_at)
    return offer(refusal, table, lsn, name)


def offer_record(
    refusal: RecordTooLarge, pin: Pin | None, read_place: Callable[[bytes], tuple[int, str, bool]]
) -> Refused:
    """Return the refusal of a record with the command that skips it, if the record is a row of the
    stream.

    A row of a load would be read again. `read_place` returns a record's position, its op, and
    whether an unchanged value was left out.
    """
    record = refusal.record
    if pin is None or record is None:
        return refusal
    try:
        lsn, op, _ = read_place(record["value"])
    except (TwofoldError, ValueError):  # the registry does not answer now: the refusal itself counts
        return refusal
    if op in "rt":
        return refusal
    return _offer(refusal, table_argument(pin.schema, pin.table), lsn, names_of_record(lsn, record)[0])


def refuse_malformed(
    error: MalformedRow, table: TableVersion, received: Received, at: int, oid_at: int
) -> MalformedMessage:
    """Return the error about the first malformed row of a run, with the command that skips it."""
    for item in () if table.void else received[at:]:
        assert not isinstance(item, Keepalive), "the run ends before it, and the malformed row is in the run"
        lsn, payload = item
        try:
            table.plan.append_run([item], 0, oid_at, TransactionHeader.later(), 0, [[]] * table.partitions, 0)
        except MalformedRow:
            name = name_raw(read_keys(table.plan, payload, oid_at), lsn, payload, oid_at)
            remedy = f"report this; until it is solved, {_way_out(_argument(table), lsn, name)}"
            return MalformedMessage(error.what, offset=error.offset, remedy=remedy)
    return MalformedMessage(error.what, offset=error.offset)


def _way_out(table: str, lsn: int, row: str) -> str:
    position = format_lsn(Lsn(lsn))
    return f"leave out exactly this row, which readers then lack: twofold skip {table} --position {position} --row {row}; then twofold run"


def _argument(table: TableVersion) -> str:
    return table_argument(table.shape.schema, table.shape.table)
