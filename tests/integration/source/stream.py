"""A slot to read in tests: everything decoded in order, until a mark that the test wrote comes
by.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeVar

import psycopg
import pytest
from psycopg import sql

from twofold.source import provisioning
from twofold.source.decoder import decode
from twofold.source.diagnosis import SlotBusy
from twofold.source.messages import LogicalMessage, Message, Relation, StreamStart, StreamStop, Type
from twofold.source.session import Keepalive, ReplicationSession, SessionOptions
from twofold_common.positions import NO_LSN, Lsn

DEADLINE_S = 30
"""Without a message."""
LET_GO_S = 3
on_each_version = pytest.mark.parametrize(
    "postgres", ["15", "16", "17", pytest.param("18", marks=pytest.mark.core)], indirect=True
)
_marks = itertools.count(1)
M = TypeVar("M")
Writer: TypeAlias = "psycopg.Connection[tuple[Any, ...]]"


@dataclass
class Stream:
    """One opened session and what it has given."""

    session: ReplicationSession
    in_stream: bool = False
    seen: list[tuple[Lsn, Message]] = field(default_factory=list)
    keepalives: list[Lsn] = field(default_factory=list)

    def read(self, wait_s: float = 0.2) -> list[tuple[Lsn, Message]]:
        """What has come, decoded and remembered."""
        new: list[tuple[Lsn, Message]] = []
        for received in self.session.read(rows_max=1000, bytes_max=1 << 22, wait_s=wait_s):
            if isinstance(received, Keepalive):
                self.keepalives.append(received.wal_end)
                continue
            start, payload = received
            message = decode(payload, in_stream=self.in_stream)
            if isinstance(message, StreamStart | StreamStop):
                self.in_stream = isinstance(message, StreamStart)
            new.append((Lsn(start), message))
        self.seen += new
        return new

    def until_mark(self, connection: Writer) -> list[Message]:
        """Write a mark and return all messages up to it, except the mark."""
        mark = f"mark {next(_marks)}".encode()
        # Taking an xid has the transaction's end, and so the mark, flushed at once.
        connection.execute("SELECT pg_logical_emit_message(false, 'mark', %b::bytea), pg_current_xact_id()", [mark])
        got: list[Message] = []
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            if new := self.read():
                deadline = time.monotonic() + DEADLINE_S
            for _, message in new:
                if isinstance(message, LogicalMessage) and message.prefix == "mark" and not message.transactional:
                    if message.content == mark:
                        return got
                else:
                    got.append(message)
        raise AssertionError(f"{mark!r} did not come; got {len(got)} messages, the last of them {got[-20:]}")

    def confirm(self, position: Lsn) -> None:
        self.session.report(write=position, flush=position)


@contextmanager
def streaming(
    conninfo: str, name: str, options: SessionOptions | None = None, start: Lsn = NO_LSN, publication: str = ""
) -> Iterator[Stream]:
    """Open the slot `name` of a publication, which has the same name unless another is given.

    The server may not have noticed yet that the one before is gone.
    """
    deadline = time.monotonic() + LET_GO_S
    while True:
        session = ReplicationSession(
            conninfo, slot=name, publication=publication or name, application_name=name, options=options or PLAIN
        )
        try:
            session.open(start)
            break
        except SlotBusy:
            session.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
    try:
        yield Stream(session)
    finally:
        session.close()


PLAIN = SessionOptions(streaming="off", binary=False)

WAYS: dict[str, SessionOptions] = {
    "text": PLAIN,
    "binary": replace(PLAIN, binary=True),
    "text_streamed": replace(PLAIN, streaming="on"),
    "binary_parallel": SessionOptions(streaming="parallel"),
}


def forced(version: int, options: SessionOptions) -> str:
    """Settings under which the server streams what it otherwise would only of large
    transactions.
    """
    if options.streaming == "off":
        return ""
    immediate = " -c debug_logical_replication_streaming=immediate" if version >= 16 else ""
    return f"-c logical_decoding_work_mem=64kB{immediate}"


def make_slot(conninfo: str, name: str, *, two_phase: bool = True) -> Lsn:
    """A publication of all tables and a slot, both called `name`."""
    provisioning.create_publication(conninfo, name, provisioning.PublicationContent(all_tables=True), name)
    return provisioning.create_slot(conninfo, name, two_phase=two_phase, wait_limit_s=20, on_wait=lambda _: None)


def prepare(writer: Writer, gid: str, statement: str) -> None:
    """Run a statement in a transaction of its own and prepare it."""
    writer.execute("BEGIN")
    writer.execute(statement)
    writer.execute(sql.SQL("PREPARE TRANSACTION {}").format(gid))


def kinds(messages: list[Message]) -> list[type]:
    """The messages' classes, without those that only describe what tables look like."""
    return [type(m) for m in messages if not isinstance(m, Relation | Type)]


def the(kind: type[M], messages: list[Message]) -> M:
    """The only message of its kind."""
    (found,) = [m for m in messages if isinstance(m, kind)]
    return found
