"""`verify` names the last commit of each row that differs: of every kind of key, and where Kafka
has none any more."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator

import psycopg
import pytest
from confluent_kafka import TopicPartition
from psycopg.conninfo import make_conninfo

from fixtures.spark import KEPT_SHORT, Lake
from fixtures.stack import Postgres, fresh_database
from helpers.spark.verified import verification
from helpers.spark.writer import Open, table
from twofold_avro.records import SkippedRow
from twofold_common.positions import format_lsn
from twofold_spark.job import cli
from twofold_spark.sinks.sink_choice import SinkChoice
from twofold_spark.sources import registry
from twofold_spark.sources.kafka_client import Kafka
from twofold_spark.sources.registry import Registry
from twofold_spark.verify.last_change import LastChangeFinder
from twofold_spark.verify.verification import TableComparison

TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6} UTC"


pytestmark = pytest.mark.usefixtures("session_of_the_tests")


@pytest.fixture
def source(lake: Lake, database: str) -> Iterator[psycopg.Connection]:
    lake.writer._lsn = 2**50  # the mirror's cuts are beyond any marker of this young server
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


def _verify(lake: Lake, database: str, touches: LastChangeFinder) -> list[TableComparison]:
    with verification(lake, lake.prefix, database, patience=2, last_changes=touches) as verify:
        return verify.run()


def _finder(lake: Lake) -> LastChangeFinder:
    return LastChangeFinder(lake.spark, lake.kafka, Registry(lake.writer.registry))


def _last_lsn(lake: Lake) -> str:
    """Of the last record: its commit took the one behind it."""
    return format_lsn(lake.writer._lsn - 8)


def _place(tx: Open) -> str:
    """Of the one record that a transaction has written."""
    ((topic, partition), stretch), *_ = tx.stretches.items()
    return f"{topic}-{partition}@{stretch.last}"


@pytest.mark.core
def test_one_altered_row_is_named_alone_and_with_the_last_commit_that_touched_it(
    lake: Lake, source: psycopg.Connection, database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    w = lake.writer
    w.table(table("accounts", {"id": "int8", "offset": "text"}), partitions=2)
    with w.commit() as tx:
        for i in range(1, 6):
            tx.upsert("accounts", {"id": i, "offset": "opened"})
    with w.commit(gid="transfer 7") as last:
        last.upsert("accounts", {"id": 2, "offset": "Ada"})
    lsn = _last_lsn(lake)
    with w.abort() as tx:
        tx.upsert("accounts", {"id": 2, "offset": "aborted"})
    with w.commit() as tx:
        tx.upsert("accounts", {"id": 1, "offset": "later"})
    source.execute('CREATE TABLE accounts (id bigint PRIMARY KEY, "offset" text)')
    for row in w.model["accounts"].values():
        source.execute("INSERT INTO accounts VALUES (%(id)s, %(offset)s)", row)
    source.execute(f"CREATE PUBLICATION {w.prefix} FOR TABLE accounts")
    reader = f"verifier_{w.prefix}"  # with the rights that docs/use/security.md names
    source.execute(
        f"CREATE ROLE {reader} LOGIN; REVOKE ALL ON SCHEMA public FROM PUBLIC; GRANT USAGE ON SCHEMA public TO {reader};"
        f" GRANT SELECT ON accounts TO {reader}"
    )
    lake.mirror()
    lake.spark.sql(f"UPDATE {lake.catalog}.public.accounts SET offset = 'altered' WHERE id = 2")
    with w.commit() as tx:
        tx.upsert("accounts", {"id": 3, "offset": "opened"})
    lake.mirror()

    line = ["verify", "--source", make_conninfo(database, user=reader), "--prefix", w.prefix]
    line += ["--warehouse", str(lake.warehouse), "--catalog", lake.catalog, "--patience", "2"]
    kafka = ["--bootstrap", w.bootstrap, "--registry", w.registry]
    assert cli.main([*line, *kafka]) == 1
    said = capsys.readouterr()
    named, commit, *more = said.out.splitlines()[1:]
    assert re.fullmatch(r"  public\.accounts 2: source \w{12}, mirror \w{12}", named), said.out
    assert re.fullmatch(
        rf"    last commit: update at {lsn}, transaction {last.tx}, gid 'transfer 7', prepared {TIME}, "
        + re.escape(_place(last)),
        commit,
    ), said.out
    assert more == []
    assert "--bootstrap" not in said.err

    assert cli.main(line) == 1
    said = capsys.readouterr()
    assert "last commit" not in said.out
    assert "with --bootstrap and --registry, verify names the last commit" in said.err
    assert cli.main([*line, *kafka[:2]]) == 2


@pytest.mark.slow
def test_it_is_told_of_every_kind_of_row(lake: Lake, source: psycopg.Connection, database: str) -> None:
    w = lake.writer
    w.table(table("pairs", {"a": "int4", "b": "text", "v": "text"}, key=("a", "b")), partitions=2)
    w.table(table("periods", {"until": "date", "v": "text"}, key=("until",)), partitions=2)
    for name in ("deleted", "emptied", "loaded", "lost", "torn"):
        w.table(table(name, {"id": "int8", "v": "text"}), partitions=2 if name == "emptied" else 1)
    w.table(table("lines", {"a": "int4", "b": "text"}, key=()), partitions=1)
    expected: dict[str, list[str]] = {}

    def last(name: str, what: str, tx: Open) -> None:
        words = "as of" if what.startswith("loaded") else "committed"
        at = re.escape(f"{what} at {_last_lsn(lake)}, transaction {tx.tx}, {words} ") + TIME
        expected.setdefault(f"public.{name}", []).append(f"{at}, " + re.escape(_place(tx)))

    source.execute(
        "CREATE TABLE pairs (a int, b text, v text, PRIMARY KEY (a, b)); INSERT INTO pairs VALUES (1, 'x, 2:y', 'v')"
    )
    with w.commit() as tx:
        tx.upsert("pairs", {"a": 1, "b": "x, 2:y", "v": "v"})
    last("pairs", "insert", tx)
    source.execute(
        "CREATE TABLE periods (until date PRIMARY KEY, v text); INSERT INTO periods VALUES ('infinity', 'second')"
    )
    for op, v in (("c", "first"), ("u", "second")):
        with w.commit() as tx:
            tx._record("periods", op, {"until": "infinity"}, None, {"until": None, "v": v}, w.lsn())
    last("periods", "update", tx)
    for name in ("deleted", "emptied", "loaded", "lost", "torn"):
        source.execute(f"CREATE TABLE {name} (id bigint PRIMARY KEY, v text)")
    with w.commit() as tx:
        tx.upsert("deleted", {"id": 1, "v": "v"})
        tx.upsert("emptied", {"id": 1, "v": "v"})
        tx.upsert("lost", {"id": 1, "v": "v"})
        tx.upsert("torn", {"id": 1, "v": "v"})
    with w.commit() as tx:
        tx.delete("deleted", 1, tombstone=True)
    deleted = _last_lsn(lake), tx.tx
    topic = re.escape(w.topics["deleted"].name)
    expected["public.deleted"] = [f"delete at {deleted[0]}, transaction {deleted[1]}, committed {TIME}, {topic}-0@2"]
    with w.commit() as tx:
        tx.truncate("emptied")
    topic = re.escape(w.topics["emptied"].name)
    expected["public.emptied"] = [
        f"truncate at {_last_lsn(lake)}, transaction {tx.tx}, committed {TIME}, {topic}-\\d@\\d"
    ]
    with w.commit(kind="backfill") as tx:
        tx.upsert("loaded", {"id": 1, "v": "v"}, op="r")
    last("loaded", "loaded by a backfill", tx)
    source.execute(
        "INSERT INTO loaded VALUES (1, 'v'); INSERT INTO lost VALUES (1, 'v'); INSERT INTO torn VALUES (1, 'v')"
    )
    source.execute("CREATE TABLE lines (a int, b text); INSERT INTO lines VALUES (1, NULL), (2, 'moved')")
    with w.commit() as tx:
        tx.keyless("lines", "c", after={"a": 1, "b": None})
    last("lines", "insert", tx)
    with w.commit() as tx:
        tx.keyless("lines", "c", after={"a": 2, "b": "there"})
    with w.commit() as tx:
        tx.keyless("lines", "u", before={"a": 2, "b": "there"}, after={"a": 2, "b": "moved"})
    last("lines", "update", tx)
    lake.mirror()

    public = f"{lake.catalog}.public"
    for name in ("pairs", "periods", "loaded", "lost", "torn"):
        lake.spark.sql(f"UPDATE {public}.{name} SET v = 'altered'")
    for name in ("deleted", "emptied"):
        lake.spark.sql(f"INSERT INTO {public}.{name} VALUES (1, 'by hand')")
    lake.spark.sql(f"UPDATE {public}.lines SET a = a + 100")
    with w.commit() as tx:  # a cut that has what was done by hand
        tx.upsert("pairs", {"a": 3, "b": "", "v": "v"})
        tx._record("periods", "c", {"until": "2024-02-29"}, None, {"until": dt.date(2024, 2, 29), "v": "v"}, w.lsn())
        for name in ("deleted", "emptied", "loaded", "lost"):
            tx.upsert(name, {"id": 9, "v": "v"})
        tx.raw("torn", w.key_bytes("torn", {"id": 1}), w.value_header("torn") + b"\x02torn")
        tx.keyless("lines", "c", after={"a": 9, "b": "v"})
    lake.mirror(unreadable="skip")
    source.execute(
        "INSERT INTO pairs VALUES (3, '', 'v'); INSERT INTO periods VALUES ('2024-02-29', 'v'); INSERT INTO lines VALUES (9, 'v')"
    )
    for name in ("deleted", "emptied", "loaded", "lost"):
        source.execute(f"INSERT INTO {name} VALUES (9, 'v')")
    w._admin.delete_records([TopicPartition(w.topics["lost"].name, 0, 1)])[
        TopicPartition(w.topics["lost"].name, 0)
    ].result(30)
    expected["public.lost"] = ["Kafka has no change of this row any more"]
    expected["public.torn"] = [r"a record that cannot be decoded, \S+-0@\d+"]
    expected["public.lines"] += ["Kafka has no change of this row any more"] * 2  # the rows that only the mirror has

    compared = {each.table: each.different for each in _verify(lake, database, _finder(lake))}
    assert {name: [d.key for d in differing] for name, differing in compared.items()} == {
        "public.pairs": ["(1, x, 2:y)"],
        "public.periods": ["infinity"],
        **{f"public.{name}": ["1"] for name in ("deleted", "emptied", "loaded", "lost", "torn")},
        "public.lines": ["(1, null)", "(2, moved)", "(101, null)", "(102, moved)"],
    }
    for name, patterns in expected.items():
        for difference, pattern in zip(compared[name], patterns, strict=True):
            assert difference.last_commit is not None
            assert re.fullmatch(pattern, difference.last_commit), (name, pattern, difference.last_commit)


def test_what_cannot_be_looked_up_takes_nothing_from_the_comparison(
    lake: Lake, source: psycopg.Connection, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "PATIENCE_S", 0.2)
    w = lake.writer
    w.table(table("t", {"id": "int8"}))
    source.execute("CREATE TABLE t (id bigint PRIMARY KEY); INSERT INTO t VALUES (1), (2), (3)")
    with w.commit() as tx:
        tx.upsert("t", {"id": 3})
    lake.mirror()
    no_kafka = Kafka("127.0.0.1:9", {"default.api.timeout.ms": "1500", "request.timeout.ms": "1000"})
    for where, at in ((no_kafka, Registry(w.registry)), (lake.kafka, Registry("http://127.0.0.1:9"))):
        (compared,) = _verify(lake, database, LastChangeFinder(lake.spark, where, at))
        one, two = compared.different
        assert [one.key, two.key] == ["1", "2"]
        assert one.last_commit is not None
        assert re.match("the lookup failed, for all of these rows: .{20}", one.last_commit)
        assert "\n" not in one.last_commit
        assert two.last_commit is None


@pytest.fixture(params=KEPT_SHORT)
def sink(request: pytest.FixtureRequest, lake: Lake, postgres: Postgres) -> Iterator[str]:
    """Where the mirror is, as `--sink` has it. In PostgreSQL it is another database than the
    source.
    """
    with fresh_database(postgres, f"mirror_{lake.writer.prefix}") as other:
        places = {"iceberg": "iceberg", "delta": f"delta={lake.warehouse / 'delta'}", "jdbc": f"jdbc={other}"}
        lake.choice = SinkChoice.parse(places[request.param])
        yield places[request.param]


def test_a_skipped_row_is_a_known_difference(
    lake: Lake, sink: str, source: psycopg.Connection, database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    w = lake.writer
    w.table(table("pairs", {"a": "int4", "b": "text", "v": "text"}, key=("a", "b")), partitions=2)
    with w.commit() as tx:
        for a in range(1, 6):
            tx.upsert("pairs", {"a": a, "b": "k", "v": "x"})
    topic = w.topics["pairs"].name
    w.skipped = (SkippedRow(topic, 77, b"\x02\x02k"), SkippedRow(topic, 78, b"\x14\x02k"))
    with w.commit() as tx:
        tx.upsert("pairs", {"a": 6, "b": "k", "v": "x"})
    source.execute("CREATE TABLE pairs (a int, b text, v text, PRIMARY KEY (a, b))")
    for row in w.model["pairs"].values():
        source.execute("INSERT INTO pairs VALUES (%(a)s, %(b)s, %(v)s)", row)
    source.execute("UPDATE pairs SET v = 'large' WHERE a = 1")
    source.execute("INSERT INTO pairs VALUES (10, 'k', 'large')")
    source.execute(f"CREATE PUBLICATION {w.prefix} FOR TABLE pairs")
    lake.mirror()
    line = ["verify", "--source", database, "--prefix", w.prefix, "--patience", "2"]
    line += ["--warehouse", str(lake.warehouse), "--catalog", lake.catalog, "--sink", sink]
    kafka = ["--bootstrap", w.bootstrap, "--registry", w.registry]
    assert cli.main([*line, *kafka]) == 0
    said = capsys.readouterr().out
    assert said.count("(a known difference: skipped)") == 2
    assert "public.pairs: lacks the row at 0/4D, which a person had skipped" in said
    source.execute("UPDATE pairs SET v = 'lost' WHERE a = 2")
    assert cli.main([*line, *kafka]) == 1
    assert capsys.readouterr().out.count("(a known difference: skipped)") == 2
    assert cli.main(line) == 1  # nobody tells which rows the keys mean
