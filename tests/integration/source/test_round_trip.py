"""Random work in real servers, decoded with streaming forced and not, in text and binary, against
the server's own account of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest
from psycopg import sql

from integration.source.assemble import Assembler, Change, Mirror
from integration.source.history import Work
from integration.source.stream import WAYS, forced, on_each_version, streaming
from twofold.source import provisioning
from twofold.source.catalog import Catalog
from twofold.source.connection import connect
from twofold.source.messages import Relation, RelationColumn, Unchanged
from twofold.source.session import SessionOptions
from twofold.stack import PostgresServer


@pytest.fixture
def other_database(postgres: PostgresServer, prefix: str) -> Iterator[str]:
    name = sql.Identifier(f"other_{prefix}")
    with closing(psycopg.connect(postgres.dsn(), autocommit=True)) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(name))
        yield postgres.dsn(f"other_{prefix}")
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))


def round_trip(postgres: PostgresServer, database: str, other_database: str, prefix: str, seed: int, size: int) -> None:
    work = Work(database, seed, other_database)
    work.set_up()
    provisioning.create_publication(
        database,
        prefix,
        provisioning.PublicationContent(tuple(("public", t.name) for t in work.tables)),
        prefix,
    )
    slots = {way: f"{prefix}_{way}" for way in WAYS}
    for slot in slots.values():
        provisioning.create_slot(database, slot, two_phase=True, wait_limit_s=20, on_wait=lambda _: None)
    work.run(size)
    account = read_account(database)
    seen = {way: decode_all(postgres, database, slots[way], prefix, options) for way, options in WAYS.items()}
    for way, assembler in seen.items():
        assert assembler.prepared == {}, way
        assert assembler.outside == work.outside, way
        assert {t.xid for t in assembler.committed} ^ account.keys() == set(), way
        check_tables(database, assembler, binary=WAYS[way].binary)
    for transaction in seen["text"].committed:
        check_account(transaction.changes, account[transaction.xid])
    for way in ("text_streamed", "binary", "binary_parallel"):
        check_same_work(seen["text"], seen[way], values=not WAYS[way].binary)
    assert seen["text_streamed"].counts["StreamStart"] > 0
    assert seen["binary_parallel"].counts["StreamPrepare"] > 0 or postgres.version < 16
    assert all("BeginPrepare" in seen[way].counts for way in ("text", "binary"))


def decode_all(
    postgres: PostgresServer, database: str, slot: str, publication: str, options: SessionOptions
) -> Assembler:
    conninfo = psycopg.conninfo.make_conninfo(database, options=forced(postgres.version, options))
    assembler = Assembler()
    with (
        closing(psycopg.connect(database, autocommit=True)) as marker,
        streaming(conninfo, slot, options, publication=publication) as stream,
    ):
        assembler.feed(stream.until_mark(marker))
    return assembler


def read_account(database: str) -> dict[int, list[tuple[str, str, str | None, str | None]]]:
    account: dict[int, list[tuple[str, str, str | None, str | None]]] = {}
    with connect(database) as connection:
        for xid, *line in connection.execute("SELECT xid, what, relation, old, new FROM public.account ORDER BY seq"):
            account.setdefault(xid, []).append(tuple(line))
    return account


def check_account(
    changes: list[tuple[int | None, Change]], account: list[tuple[str, str, str | None, str | None]]
) -> None:
    """One transaction's changes against its triggers' lines, in order; of several truncates in a
    row the order is not kept.
    """
    decoded = [change for _, change in changes]
    assert flat([(c.what, c.relation.table if c.relation else None) for c in decoded]) == flat(
        [(what, relation) for what, relation, _, _ in account]
    )
    for change, (what, _, old, new) in zip(decoded, account, strict=True):
        if what == "MESSAGE":
            assert change.content == new
        elif what != "TRUNCATE":
            check_row(change, change.new, new, whole=True)
            if change.old is not None:
                check_row(change, change.old, old, whole=change.old_whole)


def flat(lines: list[tuple[str, str | None]]) -> list[tuple[str, str | None]]:
    out: list[tuple[str, str | None]] = []
    run: list[tuple[str, str | None]] = []
    for line in [*lines, ("", None)]:
        if line[0] == "TRUNCATE":
            run.append(line)
        else:
            out += [*sorted(run, key=str), line]
            run = []
    return out


def check_row(
    change: Change, decoded: dict[str, bytes | Unchanged | None] | None, text: str | None, *, whole: bool
) -> None:
    if decoded is None or text is None:
        assert decoded is None
        assert text is None
        return
    assert change.relation is not None
    for column, (name, value), told in zip(change.relation.columns, decoded.items(), parse_record(text), strict=True):
        if not isinstance(value, Unchanged) and (whole or column.in_identity):
            assert value == told, name


def parse_record(text: str) -> list[bytes | None]:
    """PostgreSQL's text form of a row: fields in quotes where they need it, quotes doubled, nothing
    at all for NULL.
    """
    fields: list[bytes | None] = []
    at = 1
    while at < len(text):
        value, quoted, inside = "", False, False
        while inside or text[at] not in ",)":
            if text[at] == "\\":
                value += text[at + 1]
                at += 1
            elif text[at] == '"' and inside and text[at + 1] == '"':
                value += '"'
                at += 1
            elif text[at] == '"':
                quoted, inside = True, not inside
            else:
                value += text[at]
            at += 1
        fields.append(value.encode() if value or quoted else None)
        at += 1
    return fields


def check_tables(database: str, assembler: Assembler, *, binary: bool) -> None:
    """The decoded transactions, applied in their order, make the tables that the server has."""
    mirror = Mirror(Catalog(database))
    for transaction in assembler.committed:
        for _, change in transaction.changes:
            mirror.apply(change)
    mirror.catalog.close()
    with connect(database) as connection:
        names = connection.execute("SELECT relname::text FROM pg_class WHERE relname ~ '^t[0-9]$'").fetchall()
        for (name,) in names:
            cursor = connection.cursor(binary=binary)
            cursor.execute(sql.SQL("SELECT * FROM public.{}").format(sql.Identifier(name)))
            result = cursor.pgresult
            assert result is not None
            columns = [(result.fname(i) or b"").decode() for i in range(result.nfields)]
            there = [tuple(result.get_value(r, c) for c in range(result.nfields)) for r in range(result.ntuples)]
            mirrored = [tuple(row.get(column) for column in columns) for row in mirror.rows(name)]
            assert sorted(mirrored, key=repr) == sorted(there, key=repr), name


def check_same_work(one: Assembler, other: Assembler, *, values: bool) -> None:
    assert [t.xid for t in one.committed] == [t.xid for t in other.committed]
    for first, second in zip(one.committed, other.committed, strict=True):
        for (_, a), (_, b) in zip(first.changes, second.changes, strict=True):
            assert a == b if values else outline(a) == outline(b)


def outline(change: Change) -> tuple[object, ...]:
    """A change without its values: which are null, which unchanged."""
    rows = [
        [(name, isinstance(value, Unchanged), value is None) for name, value in (row or {}).items()]
        for row in (change.old, change.new)
    ]
    return change.what, change.relation, change.content, rows


@on_each_version
@pytest.mark.parametrize("seed", [1])
def test_round_trip(postgres: PostgresServer, database: str, other_database: str, prefix: str, seed: int) -> None:
    round_trip(postgres, database, other_database, prefix, seed * 100 + postgres.version, 60)


@on_each_version
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(2, 12))
def test_round_trips_for_long(
    postgres: PostgresServer, database: str, other_database: str, prefix: str, seed: int
) -> None:
    round_trip(postgres, database, other_database, prefix, seed * 100 + postgres.version, 1500)


@pytest.mark.core
def test_the_account_notices_a_wrong_row() -> None:
    """The comparison itself must be able to fail."""
    relation = Relation(
        1, "public", "t", "default", (RelationColumn("k", 23, -1, True), RelationColumn("v", 25, -1, False))
    )
    change = Change("INSERT", relation, None, {"k": b"1", "v": b"a,b"})
    check_account([(None, change)], [("INSERT", "t", None, '(1,"a,b")')])
    for line in [("INSERT", "t", None, "(1,ab)"), ("INSERT", "u", None, '(1,"a,b")'), ("INSERT", "t", None, "(1,)")]:
        with pytest.raises(AssertionError):
            check_account([(None, change)], [line])
