"""`verify` against a real PostgreSQL and a real mirror: equal for every type, and one altered row
is found alone."""

from __future__ import annotations

import datetime as dt
import re
import socket
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest

from fixtures.spark import Lake
from helpers.spark.verified import verification
from helpers.spark.writer import table
from twofold_avro.shapes import TypeShape
from twofold_spark.errors import SetupError
from twofold_spark.sources.postgres_connection import build_jdbc_url
from twofold_spark.sources.source_database import SourceDatabase
from twofold_spark.verify.verification import TableComparison

COLUMNS = {
    "id": "int8", "small": "int2", "flag": "bool", "single": "float4", "double": "float8", "body": "text",
    "padded": "bpchar", "bytes": "bytea", "free": "numeric", "day": "date", "at": "timestamptz", "local": "timestamp",
    "clock": "time", "uid": "uuid", "doc": "jsonb", "span": "interval",
}  # fmt: skip


def _verify(lake: Lake, database: str) -> tuple[list[TableComparison], list[str]]:
    said: list[str] = []
    with verification(lake, lake.prefix, database, said.append, patience=2) as verify:
        return verify.run(), said


def _verify_altered(
    lake: Lake, database: str, name: str, change: str, *, another: int
) -> tuple[list[TableComparison], list[str]]:
    """A row is altered in the mirror alone, and another one changes, so that a cut has it."""
    lake.spark.sql(f"UPDATE {lake.catalog}.public.{name} SET {change}")
    with lake.writer.commit() as tx:
        tx.upsert(name, {**lake.writer.model[name][another]})
    lake.mirror()
    return _verify(lake, database)


def test_an_address_that_the_driver_refuses_is_not_quoted(lake: Lake) -> None:
    """The driver quotes the whole of it, the password included."""
    with pytest.raises(SetupError, match=r"the source .*cannot use its address.*--source") as told:
        SourceDatabase(lake.spark, "jdbc:postgresql://127.0.0.1:5x/shop?user=me&password=hunter2")
    assert "hunter2" not in str(told.value)


@contextmanager
def asking_for_a_password(heard: list[bytes]) -> Iterator[int]:
    """A PostgreSQL that asks for the password in clear, and then knows nobody."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection:
                        asked = connection.recv(4096)
                        if len(asked) == 8:  # whether it speaks TLS
                            connection.sendall(b"N")
                            connection.recv(4096)
                        connection.sendall(b"R\0\0\0\x08\0\0\0\x03")
                        heard.append(connection.recv(4096))
                        connection.sendall(b"E\0\0\0\x1bSFATAL\0C28P01\0Mnobody\0\0")

        threading.Thread(target=answer, daemon=True).start()
        yield server.getsockname()[1]


def test_the_password_may_be_in_a_file_of_libpqs(lake: Lake, tmp_path: Path) -> None:
    """So that no command line has it."""
    file = tmp_path / "pgpass"
    file.write_text("127.0.0.1:*:shop:me:hunter2\n")
    file.chmod(0o600)
    system: Any = cast("Any", lake.spark._jvm).java.lang.System
    system.setProperty("org.postgresql.pgpassfile", str(file))
    heard: list[bytes] = []
    try:
        with asking_for_a_password(heard) as port, pytest.raises(SetupError):
            SourceDatabase(lake.spark, build_jdbc_url(f"host=127.0.0.1 port={port} dbname=shop user=me"))
    finally:
        system.clearProperty("org.postgresql.pgpassfile")
    assert b"hunter2" in b"".join(heard)


def test_it_waits_for_the_first_cut_of_a_mirror_that_starts_after_it(lake: Lake, database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE late (id bigint PRIMARY KEY); INSERT INTO late VALUES (1)")
    lake.writer.table(table("late", {"id": "int8"}))
    with lake.writer.commit() as tx:
        tx.upsert("late", {"id": 1})
    with verification(lake, lake.prefix, database, patience=120) as verify, ThreadPoolExecutor(1) as beside:
        compared = beside.submit(verify.run)
        lake.mirror()
        [late] = compared.result()
    assert (late.rows, late.buckets) == (1, 0)


@pytest.mark.core
def test_every_type_is_equal_and_one_altered_row_is_found_alone(lake: Lake, database: str) -> None:
    w = lake.writer
    w._lsn = 2**50  # the mirror's cuts are beyond any marker of this young server
    w.table(table("kinds", COLUMNS))
    columns = ", ".join(f"{n} {'char(5)' if t == 'bpchar' else t}" for n, t in COLUMNS.items())
    rows = [
        (1, 7, True, 0.1, 1e300, "plain", "ab   ", b"\x00\xff", "12.3400", "2024-02-29", "2024-02-29 12:00:00.123456+00",
         "2024-02-29 12:00:00.000001", "23:59:59.999999", str(uuid.UUID(int=5)), '{"a": 1}', "1 mon 2 days"),
        (2, -1, False, -0.0, 5e-324, "snow \u2603 and , : N", "     ", b"", "0", "1969-12-31", "1969-12-31 23:59:59.5+00",
         "1700-01-01 00:00:00", "00:00:00", str(uuid.UUID(int=6)), "[]", "-00:00:01"),
        (3, *[None] * 15),
    ]  # fmt: skip
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE kinds ({columns}, PRIMARY KEY (id))")
        for row in rows:
            connection.execute(f"INSERT INTO kinds VALUES ({', '.join(['%s'] * len(row))})", row)
        connection.execute("SET TimeZone = 'UTC'")
        texts = connection.execute("SELECT *, padded || '|' FROM kinds ORDER BY id").fetchall()
    names = list(COLUMNS)
    with w.commit() as tx:
        for row, found in zip(rows, texts, strict=True):
            value = dict(zip(names, found[: len(names)], strict=True))
            value |= {n: row[names.index(n)] for n in ("padded", "free", "doc", "span", "uid")}
            for name in ("at", "local"):
                value[name] = None if value[name] is None else value[name].replace(tzinfo=dt.UTC)
            value["local"] = None if value["local"] is None else value["local"].replace(tzinfo=None)
            tx.upsert("kinds", value)
    lake.mirror()

    (equal,), _ = _verify(lake, database)
    assert (equal.rows, equal.buckets) == (3, 0), str(equal)

    (compared,), said = _verify_altered(lake, database, "kinds", "body = 'altered' WHERE id = 2", another=3)
    assert [d.key for d in compared.different] == ["2"]
    assert compared.is_certain
    assert "DIFFERENT in 1 of" in said[0]


def test_composites_and_arrays_are_compared_as_the_mirror_has_them(lake: Lake, database: str) -> None:
    """A composite value with a null in it is a value, and one element that the mirror cannot have
    makes a whole array null there.
    """
    w = lake.writer
    w._lsn = 2**50
    of = {"id": "int8", "one": "pair", "many": "pair[]", "numbers": "int4[]", "days": "date[]"}
    plain = table("odd", {name: kind.removesuffix("[]") for name, kind in of.items()})
    shape = replace(
        plain,
        columns=tuple(
            replace(each, type=TypeShape(0, "pg_catalog", "", "array", element=each.type))
            if of[each.name][-1] == "]"
            else each
            for each in plain.columns
        ),
    )
    w.table(shape, partitions=1)
    with w.commit() as tx:
        tx.upsert("odd", {"id": 1, "one": "(1,)", "many": ["(1,x)", "(2,)"], "numbers": None, "days": None})
        tx.upsert("odd", {"id": 2, "one": None, "many": [], "numbers": [3, None], "days": [dt.date(2024, 2, 29), None]})
    lake.mirror()
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TYPE pair AS (a int, b text)")
        columns = ", ".join(f"{name} {kind}" for name, kind in of.items())
        connection.execute(f"CREATE TABLE odd ({columns}, PRIMARY KEY (id))".encode())
        connection.execute(
            "INSERT INTO odd VALUES (1, ROW(1, NULL), ARRAY[ROW(1, 'x'), ROW(2, NULL)]::pair[], '[0:1]={1,2}', '{infinity}'),"
            " (2, NULL, '{}', '{3,NULL}', '{2024-02-29,NULL}')"
        )
    (equal,), _ = _verify(lake, database)
    assert (equal.rows, equal.buckets) == (2, 0), str(equal)
    assert equal.inexpressible == {"numbers": 1, "days": 1}
    (compared,), _ = _verify_altered(lake, database, "odd", "one = NULL WHERE id = 1", another=2)
    assert [each.key for each in compared.different] == ["1"]


def test_what_is_not_compared_is_said(lake: Lake, database: str) -> None:
    """Values that the mirror cannot hold, and tables that it lacks, that it has stopped, that are
    in backfill, and that the source has dropped. The others are compared.
    """
    w = lake.writer
    w._lsn = 2**50
    w.table(table("periods", {"until": "date", "since": "date"}, key=("until",)))
    for name in ("torn", "whole"):
        w.table(table(name, {"id": "int8", "v": "text"}), partitions=1)
    for name in ("dropped", "loading"):
        w.table(table(name, {"id": "int8"}), partitions=1)
    w.backfilling = (w.topics["loading"].name, f"{w.prefix}.public.not_begun")
    with w.commit() as tx:
        for until, day in (("infinity", None), ("-infinity", None), ("2024-02-29", dt.date(2024, 2, 29))):
            tx._record("periods", "c", {"until": until}, None, {"until": day, "since": None}, w.lsn())
        tx.upsert("whole", {"id": 1, "v": "v"})
        tx.raw("torn", b"key", b"not framed")
        for name in ("dropped", "loading"):
            tx.upsert(name, {"id": 1})
    lake.mirror(on_table_error="go-on", warn=lambda _: None)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE periods (until date PRIMARY KEY, since date)")
        connection.execute(
            "INSERT INTO periods VALUES ('infinity', '-infinity'), ('-infinity', NULL), ('2024-02-29', NULL)"
        )
        for name in ("torn", "whole"):
            connection.execute(f"CREATE TABLE {name} (id int8 PRIMARY KEY, v text); INSERT INTO {name} VALUES (1, 'v')")
        for name in ("loading", "forgotten", "empty"):
            connection.execute(f"CREATE TABLE {name} (id int8 PRIMARY KEY)")
        connection.execute("INSERT INTO loading VALUES (1), (2); INSERT INTO forgotten VALUES (1)")
        connection.execute(f"CREATE PUBLICATION {w.prefix} FOR TABLE periods, torn, whole, loading, forgotten, empty")

        for publication in (w.prefix, None):
            said: list[str] = []
            settings: Any = {"publication": publication, "patience": 2}
            with verification(lake, lake.prefix, database, said.append, **settings) as verify:
                compared = {each.table: each for each in verify.run()}
                assert {name: each.buckets for name, each in compared.items()} == {
                    "public.periods": 0,
                    "public.whole": 0,
                }
                periods = compared["public.periods"]
                assert (periods.rows, periods.inexpressible) == (3, {"until": 2, "since": 1}), str(periods)
                lacks = ["public.forgotten"] if publication else []
                assert sorted(verify.list_missing()) == [*lacks, "public.loading", "public.torn"]
                assert ("public.forgotten: published, 1 row, NOT in the mirror" in said) == bool(publication)
                assert any(line.startswith("public.empty: no rows, equal") for line in said) == bool(publication)
                assert any(line.startswith("public.dropped: NOT in the source") for line in said)
                assert "public.loading: its backfill is in progress, NOT compared" in said
                assert (
                    "public.torn: stopped, NOT in the mirror: `twofold backfill start public.torn` brings it back"
                    in said
                )
        connection.execute("DROP TABLE periods, whole")
        with pytest.raises(SetupError, match="give --source the database that is mirrored"):
            _verify(lake, database)


def test_what_the_publication_leaves_out_is_not_compared(lake: Lake, database: str) -> None:
    """Rows that its filter leaves out, columns that its list lacks, and generated columns."""
    w = lake.writer
    w._lsn = 2**50
    for name in ("people", "whole"):
        w.table(table(name, {"id": "int8", "name": "text"}), partitions=1)
    with w.commit() as tx:
        for name in ("people", "whole"):
            tx.upsert(name, {"id": 1, "name": "anna"})
    lake.mirror()
    with psycopg.connect(database, autocommit=True) as connection:
        generated = "twice int8 GENERATED ALWAYS AS (id * 2) STORED"
        connection.execute(f"CREATE TABLE people (id int8 PRIMARY KEY, name text, secret text, {generated})")
        connection.execute("INSERT INTO people (id, name, secret) VALUES (1, 'anna', 'x'), (2, 'bert', 'y')")
        connection.execute(f"CREATE TABLE whole (id int8 PRIMARY KEY, name text, {generated})")
        connection.execute("INSERT INTO whole (id, name) VALUES (1, 'anna')")
        connection.execute("CREATE TABLE later (id int8 PRIMARY KEY); INSERT INTO later VALUES (1)")
        published = "people (id, name) WHERE (id < 2), TABLE whole, TABLE later WHERE (id > 1)"
        connection.execute(f"CREATE PUBLICATION {w.prefix} FOR TABLE {published}")
        for name in ("anna", "other"):
            connection.execute("UPDATE people SET name = %s", (name,))
            said: list[str] = []
            settings: Any = {"publication": w.prefix, "patience": 0}
            with verification(lake, lake.prefix, database, said.append, **settings) as verify:
                people, whole = verify.run()
                assert (people.rows, people.buckets) == (1, name != "anna"), str(people)
                assert (whole.rows, whole.buckets) == (1, 0), str(whole)
                assert "public.people: not published, NOT compared: secret, twice" in said
                assert "public.whole: not published, NOT compared: twice" in said
                assert verify.list_missing() == []


def test_rows_of_tables_that_inherit_are_compared_under_their_own_tables(lake: Lake, database: str) -> None:
    """As they are replicated, unlike those of a partitioned table."""
    w = lake.writer
    w._lsn = 2**50
    for name in ("cities", "capitals", "sales"):
        w.table(table(name, {"id": "int8"}), partitions=1)
    with w.commit() as tx:
        for name, key in (("cities", 1), ("capitals", 2), ("sales", 3)):
            tx.upsert(name, {"id": key})
    lake.mirror()
    with psycopg.connect(database, autocommit=True) as connection:
        for parent in ("cities", "sources"):
            connection.execute(f"CREATE TABLE {parent} (id int8 PRIMARY KEY)")
        connection.execute("CREATE TABLE capitals (PRIMARY KEY (id)) INHERITS (cities)")
        connection.execute("CREATE TABLE springs (PRIMARY KEY (id)) INHERITS (sources)")
        connection.execute("CREATE TABLE sales (id int8 PRIMARY KEY) PARTITION BY HASH (id)")
        connection.execute("CREATE TABLE sales_0 PARTITION OF sales FOR VALUES WITH (MODULUS 1, REMAINDER 0)")
        for name, key in (("cities", 1), ("capitals", 2), ("sales", 3), ("springs", 4)):
            connection.execute(f"INSERT INTO {name} VALUES ({key})")
        published = "cities, capitals, sales, ONLY sources"
        connection.execute(
            f"CREATE PUBLICATION {w.prefix} FOR TABLE {published} WITH (publish_via_partition_root = true)"
        )
    with verification(lake, lake.prefix, database, publication=w.prefix, patience=2) as verify:
        assert [str(each).removeprefix("public.") for each in verify.run()] == [
            f"{name}: 1 row, equal" for name in ("capitals", "cities", "sales")
        ]
        assert verify.list_missing() == []


def test_names_inside_values_are_qualified_whatever_the_login_has(lake: Lake, database: str) -> None:
    w = lake.writer
    w._lsn = 2**50
    w.table(table("names", {"id": "int8", "of": "regclass"}), partitions=1)
    with w.commit() as tx:
        tx.upsert("names", {"id": 1, "of": "public.names"})
    lake.mirror()
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE names (id int8 PRIMARY KEY, of regclass); INSERT INTO names VALUES (1, 'names')"
        )
        connection.execute(
            "ALTER ROLE CURRENT_USER IN DATABASE " + connection.info.dbname + " SET quote_all_identifiers = on"
        )
    assert [str(c) for c in _verify(lake, database)[0]] == ["public.names: 1 row, equal"]


def test_rows_that_a_policy_hides_are_not_taken_for_rows_too_many(lake: Lake, database: str) -> None:
    w = lake.writer
    w._lsn = 2**50
    w.table(table("of_tenants", {"id": "int8", "v": "text"}))
    with w.commit() as tx:
        tx.upsert("of_tenants", {"id": 1, "v": "a"})
    lake.mirror()
    with psycopg.connect(database, autocommit=True) as admin:
        admin.execute("CREATE TABLE of_tenants (id int8 PRIMARY KEY, v text)")
        admin.execute("INSERT INTO of_tenants VALUES (1, 'a')")
        admin.execute("ALTER TABLE of_tenants ENABLE ROW LEVEL SECURITY")
        admin.execute(f"CREATE ROLE {(role := f'reader_{w.prefix}')} LOGIN")
        admin.execute(f"GRANT SELECT ON of_tenants TO {role}")
        try:
            with pytest.raises(SetupError, match="row-level security policy for table"):
                _verify(lake, f"{database} user={role}")
        finally:
            admin.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_every_nan_is_one_value(lake: Lake, database: str) -> None:
    """One that was computed has other bits, of which PostgreSQL as a mirror's place keeps none."""
    w = lake.writer
    w._lsn = 2**50
    w.table(table("floats", {"id": "int8", "single": "float4", "double": "float8"}), partitions=1)
    with w.commit() as tx:
        tx.upsert("floats", {"id": 1, "single": float("nan"), "double": float("nan")})
    lake.mirror()
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE floats (id int8 PRIMARY KEY, single float4, double float8)")
        connection.execute("INSERT INTO floats SELECT 1, x - x, x - x FROM (VALUES ('inf'::float8)) v (x)")
        assert connection.execute("SELECT float8send(double) FROM floats").fetchone() != (b"\x7f\xf8" + bytes(6),)
    assert [str(c) for c in _verify(lake, database)[0]] == ["public.floats: 1 row, equal"]


def test_a_key_column_that_the_source_has_no_more_is_no_obstacle(lake: Lake, database: str) -> None:
    """Before the reload that gives the mirror the new key, and after it. A column may have the name
    that tells a keyless table's copies."""
    w = lake.writer
    w._lsn = 2**50
    columns = {"id": "int8", "region": "text", "_copies": "int8"}
    t = w.table(table("t", columns), partitions=1)
    rows = [{"id": i, "region": f"r{i}", "_copies": i} for i in range(3)]
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int8 PRIMARY KEY, region text NOT NULL, _copies int8)")
        connection.execute("INSERT INTO t SELECT i, 'r' || i, i FROM generate_series(0, 2) i")
        with w.commit() as tx:
            for row in rows:
                tx.upsert(t, row)
        lake.mirror()
        assert [str(c) for c in _verify(lake, database)[0]] == ["public.t: 3 rows, equal"]
        connection.execute("ALTER TABLE t DROP COLUMN id, ADD PRIMARY KEY (region)")
    assert [str(c) for c in _verify(lake, database)[0]] == ["public.t: 3 rows, equal"]
    w.take_any(f"{w.topics[t].name}-value")
    w.delete_subject(f"{w.topics[t].name}-key")
    w.table(table("t", {"region": "text", "_copies": "int8"}, key=("region",)))
    with w.commit(kind="reload") as tx:
        tx.truncate(t)
        for row in rows:
            tx.upsert(t, {"region": row["region"], "_copies": row["_copies"]}, op="r")
    lake.mirror()
    assert [str(c) for c in _verify(lake, database)[0]] == ["public.t: 3 rows, equal"]
    assert lake.reader.read_key(lake.prefix, "public.t") == ("region",)


def test_a_publication_that_is_not_there_is_refused(lake: Lake, database: str) -> None:
    with (
        verification(lake, lake.prefix, database, publication="nobody's", patience=2) as verify,
        pytest.raises(SetupError, match=r"no publication nobody's.*--publication"),
    ):
        verify.run()


def test_a_row_that_is_missing_one_too_many_and_a_key_that_is_there_twice_are_named(lake: Lake, database: str) -> None:
    """Whichever of the two rows of a key comes last: of the even keys the right row is the younger
    one, of the odd ones the wrong.
    """
    w = lake.writer
    w._lsn = 2**50
    w.table(table("other", {"id": "int4", "price": "text", "tags": "text"}))
    w.table(table("prices", {"id": "int4", "price": "text"}))
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE other (id int4 PRIMARY KEY, price text, tags text)")
        connection.execute("INSERT INTO other SELECT i, i::text, NULL FROM generate_series(1, 500) i")
        connection.execute("CREATE TABLE prices (id int4 PRIMARY KEY, price text)")
        connection.execute("INSERT INTO prices SELECT i, 'right' FROM generate_series(1, 30) i")
    with w.commit() as tx:
        for i in range(2, 502):
            tx.upsert("other", {"id": i, "price": str(i), "tags": None})
        for i in range(1, 31):
            tx.upsert("prices", {"id": i, "price": "right"})
    lake.mirror()
    prices = f"{lake.catalog}.public.prices"
    lake.spark.sql(f"UPDATE {prices} SET price = 'wrong' WHERE id % 2 = 0")
    lake.spark.sql(f"INSERT INTO {prices} SELECT id, IF(id % 2 = 0, 'right', 'wrong') FROM {prices}")
    with w.commit() as tx:
        tx.upsert("prices", {"id": 30, "price": "right"})  # twice the same row then
    lake.mirror()
    compared, said = _verify(lake, database)
    other, twice = sorted(compared, key=lambda each: each.table)
    assert [(d.key, d.source is None, d.mirror is None) for d in other.different] == [
        ("1", False, True),
        ("501", True, False),
    ]
    assert {int(d.key) for d in twice.different} == set(range(1, 31)), said
    (line,) = (each for each in said if "public.prices" in each)
    assert re.search(r"prices 1: source (\w{12}), mirror (\1 and \w{12}|\w{12} and \1)$", line, re.MULTILINE), line
    assert re.search(r"prices 30: source (\w{12}), mirror \1 2 times$", str(twice.different[29])), line
