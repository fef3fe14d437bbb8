"""Writes corpus/captured.txt again, from servers 15 and 18.

    PYTHONPATH=tests .venv/bin/python -m fuzz.capture

One message a line: 1 if a stream block was open, else 0, and the payload in hex. One random history
is read in all the ways of the round trips; of each kind of message a few are kept, from the
shortest to the longest.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import psycopg

from fuzz.captured import FILE
from integration.source.history import Work
from integration.source.stream import WAYS, forced, make_slot
from twofold.source.session import Keepalive, ReplicationSession, SessionOptions
from twofold.stack import PostgresServer, temporary_folder

OF_A_KIND = 4
BYTES_MAX = 300
END = "the end"


def main() -> None:
    messages: set[tuple[bool, bytes]] = set()
    folder = temporary_folder()
    try:
        for version in ("15", "18"):
            server = PostgresServer(folder / version, version=version, settings={"fsync": "off"})
            server.start()
            try:
                work(server.dsn())
                for way, options in WAYS.items():
                    messages |= choose(set(read(server, way, options)))
            finally:
                server.stop()
    finally:
        shutil.rmtree(folder)
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text("".join(f"{in_stream:d} {payload.hex()}\n" for in_stream, payload in sorted(messages)))
    print(f"{len(messages)} messages in {FILE}")


def work(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE DATABASE other")
        for way in WAYS:
            make_slot(dsn, way)
        history = Work(dsn, seed=1, other_database=psycopg.conninfo.make_conninfo(dsn, dbname="other"))
        history.set_up()
        history.run(300)
        connection.execute("SELECT pg_replication_origin_create('o'), pg_replication_origin_session_setup('o')")
        connection.execute("INSERT INTO t0 (k, k2) VALUES (5000, 'x')")
        connection.execute("SELECT pg_logical_emit_message(false, %s, ''), pg_current_xact_id()", [END])


def read(server: PostgresServer, way: str, options: SessionOptions) -> Iterator[tuple[bool, bytes]]:
    conninfo = psycopg.conninfo.make_conninfo(server.dsn(), options=forced(server.version, options))
    session = ReplicationSession(conninfo, slot=way, publication=way, application_name=way, options=options)
    session.open()
    in_stream, ended = False, False
    while not ended:
        for received in session.read(rows_max=1000, bytes_max=1 << 20, wait_s=1):
            if not isinstance(received, Keepalive):
                payload = received[1]
                yield in_stream, payload
                in_stream = payload[:1] == b"S" or (in_stream and payload[:1] != b"E")
                ended = ended or (payload[:1] == b"M" and END.encode() + b"\0" in payload)
    session.close()


def choose(messages: set[tuple[bool, bytes]]) -> set[tuple[bool, bytes]]:
    kinds: dict[tuple[bool, int], list[bytes]] = {}
    for in_stream, payload in sorted(messages, key=lambda m: (len(m[1]), m)):
        if len(payload) <= BYTES_MAX:
            kinds.setdefault((in_stream, payload[0]), []).append(payload)
    return {
        (in_stream, payload)
        for (in_stream, _), payloads in kinds.items()
        for payload in [*payloads[:: max(1, len(payloads) // (OF_A_KIND - 1))][: OF_A_KIND - 1], payloads[-1]]
    }


if __name__ == "__main__":
    main()
