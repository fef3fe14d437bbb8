"""What the server's errors on a replication session mean, and what mends them. Looks closer over a plain connection where that helps."""

from __future__ import annotations

import psycopg

from twofold.errors import RESET_REPAIR, Refused, RunEnded, SetupError, TwofoldError, Unreachable, UsageError
from twofold.source.connection import SHUTTING_DOWN, connect


class SlotBusy(Unreachable):
    """Another client holds the slot: a standby waits and tries again."""

    def __init__(self, slot: str, pid: int | None, address: str) -> None:
        holder = f"process {pid} from {address}" if pid else "another client"
        super().__init__(
            f"slot {slot!r} is held by {holder}: wait for it to end, or end it with "
            f"SELECT pg_terminate_backend({pid or '<pid>'})"
        )
        self.pid = pid
        self.address = address


def start_error(conninfo: str, slot: str, error: psycopg.Error) -> TwofoldError:
    """Why START_REPLICATION, or the use of a slot by other means, was refused."""
    if error.sqlstate == "55006":  # object_in_use
        return SlotBusy(slot, *slot_holder(conninfo, slot))
    if error.sqlstate == "55000" and (lost := _lost(conninfo, slot)) is not None:
        return lost
    words = words_of(error)
    if error.sqlstate is None or error.sqlstate.startswith(_GOING_AWAY):
        return Unreachable(f"PostgreSQL went away when slot {slot!r} was asked for: {words}")
    if error.sqlstate == "55000" and "wal_level" in words:
        remedy = "ALTER SYSTEM SET wal_level = logical, and restart PostgreSQL"
    else:
        remedy = _REMEDIES.get(error.sqlstate or "", "see the server's log")
    return SetupError(
        f"PostgreSQL refuses slot {slot!r}: {words}; remedy: {remedy.format(slot=slot, user=_user(conninfo))}"
    )


_GOING_AWAY = ("08", SHUTTING_DOWN)
"""With the end of a connection."""

_REMEDIES = {
    "42704": "`twofold init` makes the slot",  # undefined_object
    "42501": "ALTER ROLE {user} REPLICATION",  # insufficient_privilege
    "53400": "drop a slot that nobody needs, see pg_replication_slots, or raise max_replication_slots and restart PostgreSQL",
    "42710": "use it as it is, or `twofold reset` first",  # duplicate_object
}


def stream_error(conninfo: str, slot: str, error: psycopg.Error) -> TwofoldError:
    """Why a running stream ended. What recovery can mend is RunEnded; what it would meet again is named."""
    words = words_of(error)
    if error.sqlstate == "42704" and "publication" in words:
        return missing_publication(words)
    if error.sqlstate in NOT_UTF8:
        return not_utf8("what slot " + repr(slot) + " sends next", words)
    if "could not map filen" in words or "unexpected duplicate for tablespace" in words:
        return _undecodable(slot, words)
    if error.sqlstate in {"55000", "57P01", "58P01"} and (lost := _lost(conninfo, slot)) is not None:
        return lost
    return RunEnded(f"the stream of slot {slot!r} ended: {words}")


def skipped_publication(diagnostic: psycopg.errors.Diagnostic) -> TwofoldError | None:
    """PostgreSQL 18 warns and leaves the changes of a dropped publication out, where earlier ones end the stream."""
    if diagnostic.sqlstate == "42704" and "publication" in (diagnostic.message_primary or ""):
        return missing_publication(f"{diagnostic.severity}: {diagnostic.message_primary}")
    if diagnostic.severity_nonlocalized == "WARNING" and "publication" in (diagnostic.message_primary or ""):
        return missing_publication(f"{diagnostic.severity}: {diagnostic.message_primary}")
    return None


def _undecodable(slot: str, words: str) -> Refused:
    """A server bug (docs/inside/source.md): the same error comes again at each try, so it is not left to recovery."""
    return Refused(
        f"PostgreSQL cannot decode slot {slot!r} any further: {words}; a prepared transaction that had truncated or rewritten "
        "a table within a savepoint was rolled back before it was decoded",
        at_stake="all changes after it: the server meets the same error at each try",
        repair=RESET_REPAIR,
    )


NOT_UTF8 = ("22021", "22P05")
"""SQLSTATEs: bytes that are no text in UTF-8, a character that UTF-8 does not have."""

INTO_UTF8 = (
    "createdb -T template0 -E UTF8 NEW",
    "pg_dump -E LATIN1 OLD | psql NEW",
)
"""LATIN1 stands for the encoding that the text really has."""

AS_UTF8 = "; ".join(INTO_UTF8) + " (with the encoding that the text has, if it is not LATIN1)"


def not_utf8(what: str, words: str) -> Refused:
    return Refused(
        f"{what} has text that PostgreSQL cannot give as UTF-8: {words}",
        at_stake="the rows that have it, and with the stream all that comes behind them: the server meets the same bytes at each try",
        repair=f"move to a database that knows its encoding: {AS_UTF8}; name it in source.dsn and start over: {RESET_REPAIR}",
    )


def missing_publication(words: str) -> Refused:
    return Refused(
        f"a publication of this slot is gone: {words}",
        at_stake="changes made while there is no publication are not sent, and making it again does not bring them back: "
        "the server decodes each change with the catalog of its own time",
        repair=f"{RESET_REPAIR}; or correct source.publication if it is another",
    )


def other_two_phase(slot: str, *, wanted: bool) -> UsageError:
    """A slot's two_phase must never be toggled."""
    return UsageError(
        f"source.two_phase is {str(wanted).lower()}, but slot {slot} was made with {str(not wanted).lower()}, and that cannot be changed: correct the setting, or start over ({RESET_REPAIR})"
    )


def slot_holder(conninfo: str, slot: str) -> tuple[int | None, str]:
    """Process and address of the client that holds a slot, as far as it can be seen."""
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
    """What to say of a slot that the server has invalidated; None if it has not."""
    try:
        connection = connect(conninfo)
    except Unreachable:
        return None  # no closer look is possible now; recovery meets the slot again
    with connection:
        reason = "s.invalidation_reason" if connection.info.server_version >= 170000 else "NULL"
        row = connection.execute(
            f"SELECT s.wal_status, {reason} FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = %s",  # noqa: S608
            (slot,),
        ).fetchone()
    if row is None or (row[0] != "lost" and row[1] is None):
        return None
    return lost_slot(slot, row[1])


def lost_slot(slot: str, reason: str | None) -> Refused:
    why = f" ({reason})" if reason else ""
    return Refused(
        f"PostgreSQL has invalidated slot {slot!r}{why}: the WAL that it needs is gone",
        at_stake="every change since the last confirmed position: it can no longer be streamed",
        repair=f"{RESET_REPAIR}; raise max_slot_wal_keep_size (or idle_replication_slot_timeout) so that it does not happen again",
    )


def words_of(error: psycopg.Error) -> str:
    """The server's message and detail on one line."""
    detail = error.diag.message_detail
    return " ".join(f"{error.diag.message_primary or error}{f' ({detail})' if detail else ''}".split())


def _user(conninfo: str) -> str:
    return str(psycopg.conninfo.conninfo_to_dict(conninfo).get("user") or "<user>")
