"""The replication session: reads a slot's stream and reports positions back, over libpq's COPY BOTH.

One thread reads, reports, tends and closes; another may have opened it. None of the calls may overlap, and but for `open` only `read` waits (at most `wait_s`). Nothing is
buffered here but what libpq has received, and all of that comes again after a kill: the server moves the slot only to what was reported.

`read` is hot: a row costs one call into libpq and one tuple. What PostgreSQL must be told in time (it ends a client that is silent for
wal_sender_timeout) is told by `read` and, within a long turn, by `tend`, which costs a look at the clock when nothing is due. In the other
direction a server that is silent for `receive_timeout_s`, though asked half-way for a sign of life, ends the run. So does one that shuts down and waits for a confirmation that it cannot get.

A position reported here is remembered and sent again with every answer to a keepalive. Until the first `report` both positions are 0/0, which
the server takes as nothing.
"""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Literal, TypeAlias

import psycopg
from psycopg import pq, sql

from twofold.errors import MalformedMessage, RunEnded, SetupError, TwofoldError
from twofold.source.connection import PlainConnection, connect
from twofold.source.cursor import POSTGRES_EPOCH_US
from twofold.source.diagnosis import other_two_phase, skipped_publication, start_error, stream_error
from twofold_common.positions import NO_LSN, Lsn, format_lsn

Streaming: TypeAlias = Literal["off", "on", "parallel"]

STATUS_INTERVAL_S = 0.25
"""Far more often than a server's wal_sender_timeout asks for: since 16 a walsender can miss a wake-up and then sleeps for up to 10 s with a commit in
hand, unless a client speaks (docs/inside/source.md). A report is 34 bytes."""
RECEIVE_TIMEOUT_S = 60.0
SPIN_ASKS = 100
SPIN_S = 2.0
"""A server that shuts down asks again as soon as it is answered, until all that it has sent is confirmed: while a prepared transaction is in doubt, for ever. So many questions without a row between
them, over so long, are that."""
CLOSE_WAIT_S = 2.0
"""How long a clean end waits for the server's own CopyDone. After it the socket is closed, which loses nothing."""

_STREAM_EARLY = """
SELECT pg_catalog.set_config(name, '8MB', false) FROM pg_catalog.pg_settings
WHERE name = 'logical_decoding_work_mem' AND source = 'default'"""
"""What a transaction has below this setting is decoded after its end, which readers wait for; by default it is 64 MB. Who has set it keeps it."""

_XLOG_DATA = ord("w")
_KEEPALIVE = ord("k")
_KEEPALIVE_FORM = Struct(">cQqB")
_STATUS_FORM = Struct(">cQQQqB")
_U64 = Struct(">Q")
_XLOG_DATA_HEADER = 25


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """What the slot's stream is asked for; `negotiate` fits it to the server's version."""

    two_phase: bool = True
    streaming: Streaming = "on"
    binary: bool = True
    messages: bool = True
    origin: Literal["none", "any"] | None = None
    receive_timeout_s: float | None = None
    """None: `RECEIVE_TIMEOUT_S`, or the server's wal_sender_timeout where that is longer; half of it a server may decode without a word."""


@dataclass(frozen=True, slots=True)
class Keepalive:
    """The server has sent all that it had to send up to `wal_end`."""

    wal_end: Lsn


Received: TypeAlias = "list[tuple[int, bytes] | Keepalive]"


class ReplicationSession:
    """One use of one slot; opened once, read until it raises or is closed."""

    def __init__(
        self,
        conninfo: str,
        *,
        slot: str,
        publications: Sequence[str],
        application_name: str,
        options: SessionOptions | None = None,
    ) -> None:
        self._conninfo = conninfo
        self._slot = slot
        self._publications = tuple(publications)
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

    def open(self, start: Lsn = NO_LSN) -> None:
        """Take the slot and start its stream at the later of `start` and what the slot has confirmed.

        SlotBusy: another client holds it. UsageError, SetupError, Refused, Unreachable: each with its remedy.
        """
        connection = connect(self._conninfo, self._application_name, replication=True)
        self._connection = connection
        try:
            options = negotiate(self._options, connection.info.server_version, self._publications)
            self._timeout_s = _wal_sender_timeout_s(connection)
            if self._timeout_s:
                self._status_interval_s = min(STATUS_INTERVAL_S, self._timeout_s / 3)
            if "streaming" in options:
                connection.execute(_STREAM_EARLY)
            connection.add_notice_handler(self._on_notice)
            if self._options.two_phase and _decodes_at_commit(connection, self._slot):
                raise other_two_phase(self._slot, wanted=True)
            self._start(connection, start, options)
        except BaseException:
            self._drop()
            raise
        self._heard = time.monotonic()
        self._send_status()

    def _start(self, connection: PlainConnection, start: Lsn, options: dict[str, str]) -> None:
        said = sql.SQL(", ").join(
            sql.SQL("{} {}").format(sql.Identifier(n), sql.Literal(v)) for n, v in options.items()
        )
        command = sql.SQL("START_REPLICATION SLOT {} LOGICAL {} ({})").format(
            sql.Identifier(self._slot), sql.SQL(format_lsn(start)), said
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
            raise stream_error(self._conninfo, self._slot, error) from error
        if result is None or result.status != pq.ExecStatus.COPY_BOTH:
            refusal = psycopg.errors.error_from_result(result) if result else psycopg.OperationalError("no answer")
            raise start_error(self._conninfo, self._slot, refusal) from refusal

    @property
    def backend_pid(self) -> int:
        """The walsender's process on the server, by which pg_locks and pg_stat_replication name this session."""
        return self._open_connection().info.backend_pid

    def read(self, *, rows_max: int, bytes_max: int, wait_s: float) -> Received:
        """All that has arrived, in order, up to either limit (the message that passes `bytes_max` is still given).

        Returns at once when there is anything, else with the first that comes, else empty after `wait_s`.
        """
        deadline = time.monotonic() + wait_s
        while True:
            taken = self._take(rows_max, bytes_max)
            self.tend()
            now = time.monotonic()
            if taken:
                self._heard, self._asked = now, None
                return taken
            self._check_silence(now)
            if now >= deadline:
                return taken
            silence = (self._heard if self._asked is None else self._asked) + self._patience_s
            self._wait(max(0.0, min(deadline, self._status_due, silence) - now))

    def report(self, *, write: Lsn, flush: Lsn) -> None:
        """Tell the server how far the stream is written and how far it is safe; sent now if either differs from the last."""
        if (write, flush) != (self._write, self._flush):
            self._write, self._flush = write, flush
            self._send_status()

    def tend(self) -> None:
        """Send what is due, and nothing else: to be called often within a long turn."""
        if time.monotonic() >= self._status_due:
            self._send_status()

    def close(self) -> None:
        """End the stream as the protocol wants it, so that the slot is free at once. Never raises; may be called twice."""
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
            pass  # the server or the network went first: what we wanted to end has ended
        self._drop()

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open_connection(self) -> PlainConnection:
        if self._connection is None:
            raise RunEnded("the replication session is not open")
        return self._connection

    def _take(self, rows_max: int, bytes_max: int) -> Received:
        pgconn = self._open_connection().pgconn
        taken: Received = []
        add, get, unpack = taken.append, pgconn.get_copy_data, _U64.unpack_from
        room, fresh = bytes_max, False
        try:
            while len(taken) < rows_max and room > 0:
                size, view = get(1)
                if size > 0:
                    if size > _XLOG_DATA_HEADER and view[0] == _XLOG_DATA:
                        add((unpack(view, 1)[0], view[_XLOG_DATA_HEADER:].tobytes()))
                        room -= size
                    else:
                        add(self._keepalive(view.tobytes()))
                    fresh = False
                elif size < 0:
                    self._raise_end(pgconn)
                elif fresh:
                    break
                else:
                    pgconn.consume_input()
                    fresh = True
        except psycopg.OperationalError as error:
            raise stream_error(self._conninfo, self._slot, error) from error
        if self._failure is not None:
            raise self._failure
        if room < bytes_max:
            self._asks = 0
        return taken

    def _keepalive(self, data: bytes) -> Keepalive:
        if data[0] != _KEEPALIVE or len(data) != _KEEPALIVE_FORM.size:
            raise MalformedMessage(f"neither XLogData nor a keepalive: {data[:1]!r} with {len(data)} bytes", offset=0)
        _, wal_end, _, reply = _KEEPALIVE_FORM.unpack(data)
        if reply:
            self._note_ask()
            self._send_status()
        return Keepalive(Lsn(wal_end))

    def _note_ask(self) -> None:
        """One that comes of a short wal_sender_timeout comes half of it after our last word at the earliest."""
        now = time.monotonic()
        if self._asks == 0 or 0 < self._timeout_s <= 4 * (now - self._last_ask):
            self._asks, self._asks_since = 0, now
        self._asks += 1
        self._last_ask = now
        if self._asks > SPIN_ASKS and now - self._asks_since > SPIN_S:
            self.close()
            raise RunEnded(
                f"PostgreSQL asks slot {self._slot!r} again and again, as it does in order to shut down: it is let go, for not all that it has sent can be confirmed now"
            )

    def _raise_end(self, pgconn: pq.abc.PGconn) -> None:
        result = pgconn.get_result()
        if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
            raise stream_error(self._conninfo, self._slot, psycopg.errors.error_from_result(result))
        raise RunEnded(f"PostgreSQL ended the stream of slot {self._slot!r} without a reason")

    def _send_status(self, *, ask: bool = False) -> None:
        pgconn = self._open_connection().pgconn
        now_us = time.time_ns() // 1000 - POSTGRES_EPOCH_US
        try:
            # libpq queues what the socket does not take now; the next flush, of this or the next call, sends it.
            pgconn.put_copy_data(_STATUS_FORM.pack(b"r", self._write, self._flush, self._flush, now_us, ask))
            pgconn.flush()
        except psycopg.OperationalError as error:
            raise stream_error(self._conninfo, self._slot, error) from error
        self._status_due = time.monotonic() + self._status_interval_s

    @property
    def _patience_s(self) -> float:
        return (self._options.receive_timeout_s or max(RECEIVE_TIMEOUT_S, self._timeout_s)) / 2

    def _check_silence(self, now: float) -> None:
        """Only ever called with the socket found empty, so a long turn of ours is not taken for silence of the server's."""
        if self._asked is None and now - self._heard >= self._patience_s:
            self._send_status(ask=True)
            self._asked = now
        elif self._asked is not None and now - self._asked >= self._patience_s:
            raise RunEnded(f"PostgreSQL gave no sign of life for {now - self._heard:.0f} s (slot {self._slot!r})")

    def _wait(self, seconds: float | None) -> None:
        poll = select.poll()
        poll.register(self._open_connection().pgconn.socket, select.POLLIN)
        poll.poll(None if seconds is None else seconds * 1000)

    def _on_notice(self, diagnostic: psycopg.errors.Diagnostic) -> None:
        self._failure = self._failure or skipped_publication(diagnostic)


def negotiate(options: SessionOptions, server_version: int, publications: Sequence[str]) -> dict[str, str]:
    """The options of START_REPLICATION for this server. What costs nothing to go without is left out; the rest is refused."""
    modern = server_version >= 160000
    if options.origin is not None and not modern:
        raise SetupError(
            f"origin = {options.origin!r} needs PostgreSQL 16, the server is {server_version // 10000}: "
            "leave it out, or upgrade the server"
        )
    said = {
        "proto_version": "4" if modern else "3",
        "publication_names": ",".join('"' + name.replace('"', '""') + '"' for name in publications),
    }
    if options.streaming != "off":
        said["streaming"] = options.streaming if modern else "on"
    for name, wanted in (("two_phase", options.two_phase), ("binary", options.binary), ("messages", options.messages)):
        if wanted:
            said[name] = "on"
    if options.origin is not None:
        said["origin"] = options.origin
    return said


def _decodes_at_commit(connection: PlainConnection, slot: str) -> bool:
    """Is it a slot made without two_phase? START_REPLICATION with it would turn it on, silently and for good."""
    row = connection.execute(
        "SELECT FROM pg_catalog.pg_replication_slots WHERE slot_name = %s AND database = current_database() AND NOT two_phase",
        (slot,),
    ).fetchone()
    return row is not None


def _wal_sender_timeout_s(connection: PlainConnection) -> float:
    """0 if there is none."""
    row = connection.execute(
        "SELECT setting::int FROM pg_catalog.pg_settings WHERE name = 'wal_sender_timeout'"
    ).fetchone()
    timeout_ms: int = row[0] if row else 0
    return timeout_ms / 1000
