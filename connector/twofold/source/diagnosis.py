"""Explains the server's errors on a replication session, and names the remedy.

Where an answer of the server helps, the module asks over a plain connection.
"""

from __future__ import annotations

import psycopg

from twofold.errors import RESET_REPAIR, Refused, RunEnded, SetupError, TwofoldError, Unreachable, UsageError
from twofold.source.connection import SHUTTING_DOWN, connect, service_at, user_of


class SlotBusy(Unreachable):
    """Another client holds the slot: a standby waits and retries."""

    def __init__(self, slot: str, pid: int | None, address: str) -> None:
        holder = f"process {pid} from {address}" if pid else "another client"
        super().__init__(
            f"slot {slot!r} is held by {holder}; remedy: stop the connector that has it; if its machine is gone, "
            f"SELECT pg_terminate_backend({pid or '<pid>'})"
        )
        self.what = f"slot {slot!r} is held by {holder}"
        self.pid = pid
        self.address = address


class SlotGone(SetupError):
    """The slot does not exist: before `init`, or because somebody has dropped it."""


def start_error(conninfo: str, slot: str, error: psycopg.Error) -> TwofoldError:
    """Explain why the server refused START_REPLICATION, or another use of the slot."""
    if error.sqlstate in {"55006", "55000"} and (foreign := foreign_slot(conninfo, slot)) is not None:
        return foreign
    if error.sqlstate == "55006":  # object_in_use
        return SlotBusy(slot, *slot_holder(conninfo, slot))
    if error.sqlstate == "55000" and (lost := _lost(conninfo, slot)) is not None:
        return lost
    message = error_text(error)
    if error.sqlstate == "42704":  # undefined_object
        return SlotGone(
            f"PostgreSQL refuses slot {slot!r}: {message}; remedy: run `twofold init`, which creates the slot"
        )
    if error.sqlstate is None or error.sqlstate.startswith(_GOING_AWAY):
        return Unreachable(f"PostgreSQL went away while the connector requested slot {slot!r}: {message}")
    if error.sqlstate == "55000" and "wal_level" in message:
        remedy = service_at(conninfo).set("wal_level", "logical", restart=True)
    elif error.sqlstate == "42501":  # insufficient_privilege
        remedy = service_at(conninfo).let_replicate(user_of(conninfo))
    else:
        remedy = _REMEDIES.get(error.sqlstate, "see the server's log")
    return SetupError(f"PostgreSQL refuses slot {slot!r}: {message}; remedy: {remedy}")


_GOING_AWAY = ("08", SHUTTING_DOWN)
"""SQLSTATE classes that end the connection."""

_REMEDIES = {
    "53400": "drop an unused slot (see pg_replication_slots), or raise max_replication_slots and restart PostgreSQL",
    "42710": "keep the existing slot, or run `twofold reset` first",  # duplicate_object
}


def stream_error(conninfo: str, slot: str, error: psycopg.Error, *, publication: str) -> TwofoldError:
    """Explain why a running stream ended.

    RunEnded is an error that recovery can repair. Any other error would return after a recovery, so
    it names its cause.
    """
    message = error_text(error)
    if error.sqlstate == "42704" and _tells_of(publication, message):
        return missing_publication(message)
    if error.sqlstate in NOT_UTF8:
        return not_utf8(f"the next change of slot {slot!r}", message)
    if is_failing_filter(error):
        return _unfilterable(slot, message)
    if "could not map filen" in message or "unexpected duplicate for tablespace" in message:
        return _undecodable(slot, message)
    if error.sqlstate in {"40001", "55000", "57P01", "58P01"} and (lost := _lost(conninfo, slot)) is not None:
        return lost
    return RunEnded(f"the stream of slot {slot!r} ended: {message}")


def skipped_publication(diagnostic: psycopg.errors.Diagnostic, publication: str) -> TwofoldError | None:
    """Detect the warning that the server skips a dropped publication.

    PostgreSQL 18 warns and leaves its changes out, where earlier versions end the stream.
    """
    said, is_warning = diagnostic.message_primary or "", diagnostic.severity_nonlocalized == "WARNING"
    is_skipped = diagnostic.sqlstate == "42704" or (is_warning and diagnostic.sqlstate == "55000")
    if (is_skipped and _tells_of(publication, said)) or (is_warning and "publication" in said):
        return missing_publication(f"{diagnostic.severity}: {said}")
    return None


def _tells_of(publication: str, message: str) -> bool:
    """Whether a message is about the publication: in the server's language only the name stays."""
    return "publication" in message or publication in message


def _undecodable(slot: str, message: str) -> Refused:
    """Refuse after a server bug (docs/inside/source.md): every retry would meet the same error."""
    return Refused(
        f"PostgreSQL cannot decode slot {slot!r} any further: {message} (a known bug: a prepared transaction truncated or rewrote "
        "a table within a savepoint, and was rolled back before it was decoded)",
        at_stake="every later change: the server fails with the same error at each retry",
        repair=RESET_REPAIR,
    )


def is_failing_filter(error: psycopg.Error) -> bool:
    """Return whether a row filter of the publication fails on a row, such as by a division by zero.

    Nothing else that the connector has the server compute can fail on the data, except for a key
    that a load read before its type changed.
    """
    return (error.sqlstate or "").startswith("22") and error.sqlstate not in NOT_UTF8


def _unfilterable(slot: str, message: str) -> Refused:
    """Refuse a change that the publication's row filter fails on."""
    return Refused(
        f"PostgreSQL cannot decode slot {slot!r} any further: {message} (the publication's row filter fails on a changed row)",
        at_stake="every later change: the server decodes each change with the filter of the change's own time, so another filter comes too late for this one",
        repair=f"correct the filter (ALTER PUBLICATION ... SET TABLE ...), then start over: {RESET_REPAIR}",
    )


NOT_UTF8 = ("22021", "22P05")
"""SQLSTATEs of bytes that are not UTF-8 text, and of characters that UTF-8 lacks."""

INTO_UTF8 = ("createdb -T template0 -E UTF8 NEW", "pg_dump -E LATIN1 OLD | psql -v ON_ERROR_STOP=1 NEW")
"""LATIN1 stands for the encoding that the text really has."""

AS_UTF8 = "; ".join(INTO_UTF8) + " (replace LATIN1 by the real encoding of the text)"


def not_utf8(subject: str, message: str) -> Refused:
    """Refuse text that the server cannot convert to UTF-8."""
    return Refused(
        f"{subject} has text that PostgreSQL cannot convert to UTF-8: {message}",
        at_stake="these rows, and every later change of the stream: the server fails on the same bytes at each retry",
        repair=f"move the data to a database in UTF-8: {AS_UTF8}; then `twofold reset`, and `twofold init` with that database in source.dsn and another kafka.prefix; all tables are then loaded again",
    )


def missing_publication(message: str) -> Refused:
    """Refuse to stream without the publication."""
    return Refused(
        f"a publication of this slot no longer exists: {message}",
        at_stake="changes made without the publication are never sent, even after it is recreated: "
        "the server decodes each change with the catalog of the change's own time",
        repair=f"correct source.publication if it names the wrong one; otherwise start over: {RESET_REPAIR}",
    )


def other_two_phase(slot: str, *, wanted: bool) -> UsageError:
    """Reject a configured two_phase that differs from the slot's: it must never be changed."""
    return UsageError(
        f"source.two_phase is {str(wanted).lower()}, but slot {slot} was created with {str(not wanted).lower()}, which cannot be changed: change source.two_phase back, or start over: {RESET_REPAIR}"
    )


def foreign_slot(conninfo: str, slot: str) -> UsageError | None:
    """Return why the slot cannot be this connector's: it belongs to another database.

    Slots have one namespace in the whole server. None: the slot is of this database, or does not
    exist.
    """
    try:
        connection = connect(conninfo)
    except Unreachable:
        return None
    with connection:
        row = connection.execute(
            "SELECT coalesce(database, ''), current_database()::text FROM pg_catalog.pg_replication_slots"
            " WHERE slot_name = %s AND database IS DISTINCT FROM current_database()",
            (slot,),
        ).fetchone()
    if row is None:
        return None
    owner = f"belongs to database {row[0]}" if row[0] else "is a physical one"
    return UsageError(
        f"slot {slot} {owner}, and source.dsn names database {row[1]}: another connector of this name may read it;"
        " correct the database in source.dsn, or set source.slot to a name of this connector's own"
    )


def slot_holder(conninfo: str, slot: str) -> tuple[int | None, str]:
    """Return process and address of the client that holds a slot, as far as they are visible."""
    with connect(conninfo) as connection:
        row = connection.execute(
            "SELECT s.active_pid, coalesce(host(a.client_addr), 'a local socket')"
            "       || coalesce(' (' || nullif(a.application_name, '') || ')', '')"
            " FROM pg_catalog.pg_replication_slots s LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = s.active_pid"
            " WHERE s.slot_name = %s",
            (slot,),
        ).fetchone()
    return (row[0], row[1]) if row else (None, "")


def _lost(conninfo: str, slot: str) -> Refused | None:
    """Return the refusal for a slot that the server has invalidated; None if it is valid."""
    try:
        connection = connect(conninfo)
    except Unreachable:
        return None  # the server cannot be asked now; recovery meets the slot again
    with connection:
        row = connection.execute(
            "SELECT to_jsonb(s) FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = %s", (slot,)
        ).fetchone()
    if row is None:
        return None
    state = row[0]
    reason = state.get("invalidation_reason") or conflict_reason(state.get("conflicting"))
    if state["wal_status"] != "lost" and reason is None:
        return None
    return lost_slot(slot, reason)


def conflict_reason(is_conflicting: bool | None) -> str | None:
    """Name the reason of a lost slot of a standby where the server (16) gives none."""
    return "conflict with recovery" if is_conflicting else None


_PREVENT = f"raise max_slot_wal_keep_size (or idle_replication_slot_timeout) to prevent a repetition, then start over: {RESET_REPAIR}"
_ROWS_REMOVED = (
    "the primary has removed rows of the catalog that decoding needs",
    f"on the standby, ALTER SYSTEM SET hot_standby_feedback = on; SELECT pg_reload_conf(); and let it use a physical slot (primary_slot_name); then start over: {RESET_REPAIR}",
)
_WAL_LEVEL = (
    "the primary's wal_level was below logical",
    f"on the primary, ALTER SYSTEM SET wal_level = logical, and restart PostgreSQL; then start over: {RESET_REPAIR}",
)
_INVALIDATED = {
    "rows_removed": _ROWS_REMOVED,
    "wal_level_insufficient": _WAL_LEVEL,
    "conflict with recovery": (f"{_ROWS_REMOVED[0]}, or {_WAL_LEVEL[0]}", _ROWS_REMOVED[1]),
}
"""The meaning of PostgreSQL's reasons, with their repair; any other: WAL is gone."""


def lost_slot(slot: str, reason: str | None) -> Refused:
    """Refuse an invalidated slot."""
    why = f" ({reason})" if reason else ""
    meaning, repair = _INVALIDATED.get(reason or "", ("the WAL that it needs is gone", _PREVENT))
    return Refused(
        f"PostgreSQL has invalidated slot {slot!r}{why}: {meaning}",
        at_stake="every change since the last confirmed position: it can no longer be streamed",
        repair=repair,
    )


def error_text(error: psycopg.Error) -> str:
    """Return the server's message and detail on one line."""
    detail = error.diag.message_detail
    return " ".join(f"{error.diag.message_primary or error}{f' ({detail})' if detail else ''}".split())
