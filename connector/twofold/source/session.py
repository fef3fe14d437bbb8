"""The replication session: reads a slot's stream and reports positions over libpq's COPY BOTH.

One thread reads, reports, tends and closes; another thread may have opened the session. No two
calls may overlap. Apart from `open`, only `read` waits, for at most `wait_s`. Only libpq buffers
received data here, and after a kill all of it is sent again: the server moves the slot only to
reported positions.

`read` is hot: a row costs one call into libpq and one tuple. PostgreSQL ends a client that is
silent for wal_sender_timeout. `read` therefore reports in time, and so does `tend` within a long
turn; `tend` costs one clock reading when nothing is due.

In the other direction, a server that is silent for `receive_timeout_s` ends the run; half-way it is
asked for a sign of life. A server that is shutting down ends the run too, if it waits for a
confirmation that it cannot get.

Every answer to a keepalive repeats the last reported position. Until the first `report` both
positions are 0/0, which the server ignores.
"""

from __future__ import annotations

import select
import time
from dataclasses import dataclass
from struct import Struct
from typing import Literal, TypeAlias

import psycopg
from psycopg import pq, sql

from twofold.errors import MalformedMessage, RunEnded, TwofoldError
from twofold.source.connection import PlainConnection, connect
from twofold.source.cursor import POSTGRES_EPOCH_US
from twofold.source.diagnosis import other_two_phase, skipped_publication, start_error, stream_error
from twofold.source.primary import is_standby
from twofold.source.timeline_guard import TimelineGuard
from twofold_common.positions import NO_LSN, Lsn, format_lsn
from twofold_common.table_names import quote_identifier, quote_literal

Streaming: TypeAlias = Literal["off", "on", "parallel"]

STATUS_INTERVAL_S = 0.25
"""The interval of reports: far shorter than a server's wal_sender_timeout requires. Since 16 a
walsender can miss a wake-up; it then sleeps for up to 10 s although it has a commit to send, unless
a client speaks (docs/inside/source.md). A report is 34 bytes.
"""
RECEIVE_TIMEOUT_S = 60.0
SHUTDOWN_ASKS = 100
SHUTDOWN_S = 2.0
"""The time and the number of questions that mean a shutdown. A server that is shutting down asks
again after each answer, until everything it sent is confirmed. While a prepared transaction is in
doubt, it would ask for ever. More than `SHUTDOWN_ASKS` questions without a row between them, over
more than this time, are such a shutdown.
"""
CLOSE_WAIT_S = 2.0
"""How long a clean end waits for the server's own CopyDone. The socket is closed after that,
which loses nothing."""

_STREAM_EARLY = """
SELECT pg_catalog.set_config(name, '8MB', false) FROM pg_catalog.pg_settings
WHERE name = 'logical_decoding_work_mem' AND source = 'default'"""
"""The setting `logical_decoding_work_mem`. A transaction below it is decoded after its end, and
readers wait for that; the default is 64 MB. A value that somebody has set is kept.
"""

_XLOG_DATA = ord("w")
_KEEPALIVE = ord("k")
_KEEPALIVE_FORM = Struct(">cQqB")
_STATUS_FORM = Struct(">cQQQqB")
_U64 = Struct(">Q")
_XLOG_DATA_HEADER = 25


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """The requested options of the stream; `negotiate` adapts them to the server's version."""

    two_phase: bool = True
    streaming: Streaming = "on"
    binary: bool = True
    messages: bool = True
    receive_timeout_s: float | None = None
    """The longest silence of the server; None: `RECEIVE_TIMEOUT_S`, or the server's
    wal_sender_timeout if that is longer. A server may decode silently for half of this time.
    """


@dataclass(frozen=True, slots=True)
class Keepalive:
    """The server's statement that it has sent everything up to `wal_end`."""

    wal_end: Lsn


Received: TypeAlias = "list[tuple[int, bytes] | Keepalive]"


class ReplicationSession:
    """One use of one slot; opened once, read until it raises or is closed."""

    def __init__(
        self,
        conninfo: str,
        *,
        slot: str,
        publication: str,
        application_name: str,
        options: SessionOptions | None = None,
    ) -> None:
        self._conninfo = conninfo
        self._slot = slot
        self._publication = publication
        self._application_name = application_name
        self._options = options or SessionOptions()
        self._connection: PlainConnection | None = None
        self._write = self._flush = NO_LSN
        self._status_interval_s = STATUS_INTERVAL_S
        self._timeout_s = 0.0
        self._asks = 0
        self._asks_since = self._last_ask = 0.0
        self._status_due = 0.0
        self._heard = 0.0
        self._asked: float | None = None
        self._failure: TwofoldError | None = None
        self._guard: TimelineGuard | None = None
        """The guard of a standby's timeline. A primary's stream has one timeline and no guard."""

    def open(self, start: Lsn = NO_LSN) -> None:
        """Take the slot and start its stream at `start` or its confirmed position, the later one.

        SlotBusy: another client holds the slot. UsageError, SetupError, Refused, Unreachable: each
        with its remedy.
        """
        connection = connect(self._conninfo, self._application_name, replication=True)
        self._connection = connection
        try:
            options = negotiate(self._options, connection.info.server_version, self._publication)
            self._timeout_s = _wal_sender_timeout_s(connection)
            if self._timeout_s:
                self._status_interval_s = min(STATUS_INTERVAL_S, self._timeout_s / 3)
            if "streaming" in options:
                connection.execute(_STREAM_EARLY)
            connection.add_notice_handler(self._on_notice)
            if self._options.two_phase and _decodes_at_commit(connection, self._slot):
                raise other_two_phase(self._slot, wanted=True)
            if is_standby(connection):
                self._guard = TimelineGuard(self._conninfo, "twofold timeline")
            self._start(connection, start, options)
        except BaseException:
            self._disconnect()
            raise
        self._heard = time.monotonic()
        self._send_status()

    def _start(self, connection: PlainConnection, start: Lsn, options: dict[str, str]) -> None:
        # The replication grammar knows no E'' and takes a backslash as it is, so no sql.Literal.
        arguments = sql.SQL(", ").join(
            sql.SQL("{} {}").format(sql.Identifier(n), sql.SQL(quote_literal(v))) for n, v in options.items()
        )
        command = sql.SQL("START_REPLICATION SLOT {} LOGICAL {} ({})").format(
            sql.Identifier(self._slot), sql.SQL(format_lsn(start)), arguments
        )
        pgconn = connection.pgconn
        try:
            pgconn.send_query(command.as_bytes(connection))
            while pgconn.flush():
                self._wait(None)
            while pgconn.is_busy():
                self._wait(None)
                pgconn.consume_input()
            result = pgconn.get_result()
        except psycopg.OperationalError as error:
            raise self._explain(error) from error
        if result is None or result.status != pq.ExecStatus.COPY_BOTH:
            refusal = psycopg.errors.error_from_result(result) if result else psycopg.OperationalError("no answer")
            raise start_error(self._conninfo, self._slot, refusal) from refusal

    @property
    def backend_pid(self) -> int:
        """Return the walsender's process id: pg_locks and pg_stat_replication show it."""
        return self._open_connection().info.backend_pid

    def read(self, *, rows_max: int, bytes_max: int, wait_s: float) -> Received:
        """Return all that has arrived, in order, up to either limit.

        The message that exceeds `bytes_max` is still included. Returns at once when anything has
        arrived, else with the first arrival, else empty after `wait_s`. From a standby it is all of
        the timeline of `open`.
        """
        deadline = time.monotonic() + wait_s
        while True:
            received = self._receive(rows_max, bytes_max)
            self.tend()
            now = time.monotonic()
            if received:
                if self._guard is not None:
                    self._guard.require_same(self.tend)
                self._heard, self._asked = now, None
                return received
            self._check_silence(now)
            if now >= deadline:
                return received
            silence = (self._heard if self._asked is None else self._asked) + self._half_timeout_s
            self._wait(max(0.0, min(deadline, self._status_due, silence) - now))

    def report(self, *, write: Lsn, flush: Lsn) -> None:
        """Report how far the stream is written and how far it is safe; a change is sent now."""
        if (write, flush) != (self._write, self._flush):
            self._write, self._flush = write, flush
            self._send_status()

    def tend(self) -> None:
        """Send the due reports and answers, and nothing else. Call it often within a long turn."""
        if time.monotonic() >= self._status_due:
            self._send_status()

    def close(self) -> None:
        """End the stream as the protocol requires, so that the slot is free at once.

        Never raises; may be called twice.
        """
        if self._connection is None:
            return
        pgconn = self._connection.pgconn
        deadline = time.monotonic() + CLOSE_WAIT_S
        try:
            pgconn.put_copy_end()
            while pgconn.flush() and time.monotonic() < deadline:
                self._wait(0.1)
            while (size := pgconn.get_copy_data(1)[0]) >= 0 and (left := deadline - time.monotonic()) > 0:
                if size == 0:
                    self._wait(left)
                    pgconn.consume_input()
        except psycopg.Error:
            pass  # the server or the network was first: the stream has ended already
        self._disconnect()

    def _disconnect(self) -> None:
        if self._guard is not None:
            self._guard.close()
            self._guard = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open_connection(self) -> PlainConnection:
        if self._connection is None:
            raise RunEnded("the replication session is not open")
        return self._connection

    def _receive(self, rows_max: int, bytes_max: int) -> Received:
        pgconn = self._open_connection().pgconn
        received: Received = []
        append, get, unpack = received.append, pgconn.get_copy_data, _U64.unpack_from
        room, just_consumed = bytes_max, False
        try:
            while len(received) < rows_max and room > 0:
                size, view = get(1)
                if size > 0:
                    if size > _XLOG_DATA_HEADER and view[0] == _XLOG_DATA:
                        append((unpack(view, 1)[0], view[_XLOG_DATA_HEADER:].tobytes()))
                        room -= size
                    else:
                        append(self._keepalive(view.tobytes()))
                    just_consumed = False
                elif size < 0:
                    self._raise_end(pgconn)
                elif just_consumed:
                    break
                else:
                    pgconn.consume_input()
                    just_consumed = True
        except psycopg.OperationalError as error:
            raise self._explain(error) from error
        if self._failure is not None:
            raise self._failure
        if room < bytes_max:
            self._asks = 0
        return received

    def _keepalive(self, data: bytes) -> Keepalive:
        if data[0] != _KEEPALIVE or len(data) != _KEEPALIVE_FORM.size:
            raise MalformedMessage(f"neither XLogData nor a keepalive: {data[:1]!r} with {len(data)} bytes", offset=0)
        _, wal_end, _, reply = _KEEPALIVE_FORM.unpack(data)
        if reply:
            self._note_ask()
            self._send_status()
        return Keepalive(Lsn(wal_end))

    def _note_ask(self) -> None:
        """Count the server's questions, and end the run if they mean a shutdown.

        A question caused by a short wal_sender_timeout comes half of that time after our last
        report at the earliest.
        """
        now = time.monotonic()
        if self._asks == 0 or 0 < self._timeout_s <= 4 * (now - self._last_ask):
            self._asks, self._asks_since = 0, now
        self._asks += 1
        self._last_ask = now
        if self._asks > SHUTDOWN_ASKS and now - self._asks_since > SHUTDOWN_S:
            self.close()
            raise RunEnded(
                f"PostgreSQL is shutting down and waits for slot {self._slot!r} to confirm everything it sent; the connector disconnects, because it cannot confirm all of that now"
            )

    def _raise_end(self, pgconn: pq.abc.PGconn) -> None:
        result = pgconn.get_result()
        if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
            raise self._explain(psycopg.errors.error_from_result(result))
        raise RunEnded(f"PostgreSQL ended the stream of slot {self._slot!r} without giving a reason")

    def _send_status(self, *, ask: bool = False) -> None:
        pgconn = self._open_connection().pgconn
        now_us = time.time_ns() // 1000 - POSTGRES_EPOCH_US
        try:
            # libpq queues what the socket does not take now; a later flush sends it.
            pgconn.put_copy_data(_STATUS_FORM.pack(b"r", self._write, self._flush, self._flush, now_us, ask))
            pgconn.flush()
        except psycopg.OperationalError as error:
            raise self._explain(error) from error
        self._status_due = time.monotonic() + self._status_interval_s

    @property
    def _half_timeout_s(self) -> float:
        return (self._options.receive_timeout_s or max(RECEIVE_TIMEOUT_S, self._timeout_s)) / 2

    def _check_silence(self, now: float) -> None:
        """Ask a silent server for a sign of life, or end the run.

        The socket was found empty before the call, so our own long turn never counts as the
        server's silence.
        """
        if self._asked is None and now - self._heard >= self._half_timeout_s:
            self._send_status(ask=True)
            self._asked = now
        elif self._asked is not None and now - self._asked >= self._half_timeout_s:
            raise RunEnded(f"PostgreSQL has sent nothing for {now - self._heard:.0f} s (slot {self._slot!r})")

    def _wait(self, seconds: float | None) -> None:
        poll = select.poll()
        poll.register(self._open_connection().pgconn.socket, select.POLLIN)
        poll.poll(None if seconds is None else seconds * 1000)

    def _explain(self, error: psycopg.Error) -> TwofoldError:
        return stream_error(self._conninfo, self._slot, error, publication=self._publication)

    def _on_notice(self, diagnostic: psycopg.errors.Diagnostic) -> None:
        self._failure = self._failure or skipped_publication(diagnostic, self._publication)


def negotiate(options: SessionOptions, server_version: int, publication: str) -> dict[str, str]:
    """Return the options of START_REPLICATION for this server.

    An option that the server does not know is left out.
    """
    modern = server_version >= 160000
    negotiated = {"proto_version": "4" if modern else "3", "publication_names": quote_identifier(publication)}
    if options.streaming != "off":
        negotiated["streaming"] = options.streaming if modern else "on"
    for name, wanted in (("two_phase", options.two_phase), ("binary", options.binary), ("messages", options.messages)):
        if wanted:
            negotiated[name] = "on"
    return negotiated


def _decodes_at_commit(connection: PlainConnection, slot: str) -> bool:
    """Return whether the slot was created without two_phase.

    START_REPLICATION with two_phase would turn it on, silently and for good.
    """
    row = connection.execute(
        "SELECT FROM pg_catalog.pg_replication_slots WHERE slot_name = %s AND database = current_database() AND NOT two_phase",
        (slot,),
    ).fetchone()
    return row is not None


def _wal_sender_timeout_s(connection: PlainConnection) -> float:
    """Return the server's wal_sender_timeout; 0 if there is none."""
    row = connection.execute(
        "SELECT setting::int FROM pg_catalog.pg_settings WHERE name = 'wal_sender_timeout'"
    ).fetchone()
    timeout_ms: int = row[0] if row else 0
    return timeout_ms / 1000
