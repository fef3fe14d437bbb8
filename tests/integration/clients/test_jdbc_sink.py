"""Debezium's JDBC sink writes what the source has: every type, key changes, deletes, a column
more.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from functools import partial
from typing import Any

import psycopg
import pytest
from bench.connect import ConnectWorker

from clients import jdbc_sink
from clients.samples import PREPARATION, SAMPLES
from fixtures.connector import Installation, Maker, wait_until
from fixtures.stack import Kafka, Postgres, fresh_database, fresh_prefix
from helpers.pages import boxes_of, with_ours

NOT_BY_THE_SINK = {"timestamp_array", "numeric_array"}
"""It names the elements' type with its precision, which the driver does not know."""
CARRIED = [s for s in SAMPLES if s.name not in NOT_BY_THE_SINK and not s.special]
KEY = "01234567-89ab-cdef-0123-45678900000{}"


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def worker(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectWorker]:
    made = jdbc_sink.made_worker(tmp_path_factory.mktemp("connect"), kafka.bootstrap)
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture
def target(postgres: Postgres) -> Iterator[str]:
    with fresh_database(postgres, f"target_{fresh_prefix()}") as made:
        yield made


def rows(conninfo: str, query: str) -> Any:
    with psycopg.connect(conninfo) as connection:
        return connection.execute(query).fetchall()


def prepare(conninfo: str, *statements: str) -> None:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        for statement in (*PREPARATION, *statements):
            connection.execute(statement)


def there(here: Installation, worker: ConnectWorker, target: str, query: str) -> None:
    """Until the sink's database gives the same answer; why the sink failed, if it did."""
    here.caught_up()
    wanted = rows(here.conninfo, query)

    def same() -> bool:
        assert (why := worker.failure(here.prefix)) is None, why
        try:
            return bool(rows(target, query) == wanted)
        except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn):
            return False

    try:
        wait_until(same)
    except AssertionError:
        assert rows(target, query) == wanted
        raise


def test_every_type_arrives(connector: Maker, worker: ConnectWorker, target: str) -> None:
    columns = ", ".join(f"v_{s.name} {s.type}" for s in CARRIED)
    table = f"CREATE TABLE every (id uuid PRIMARY KEY, {columns})"
    here = connector(init=False, source={"tables": ["public.account", "public.every"]})
    prepare(here.conninfo, "CREATE TABLE account (id int PRIMARY KEY, version int, note text)", table)
    prepare(target, table)
    assert here.init().returncode == 0
    first, last = (", ".join(s.values[n] for s in CARRIED) for n in (0, -1))
    query = "SELECT every::text FROM every ORDER BY id"
    here.sql(f"INSERT INTO every VALUES ('{KEY.format(0)}', {first})")
    with here.carrying():
        here.sql(
            f"INSERT INTO every VALUES ('{KEY.format(1)}', {last})",
            f"INSERT INTO every VALUES ('{KEY.format(2)}', {first}), ('{KEY.format(3)}', {first})",
            f"INSERT INTO every (id) VALUES ('{KEY.format(4)}')",
        )
        topics = [f"{here.prefix}.public.every"]
        sink = jdbc_sink.settings(topics, here.reader.registry_url, target, jdbc_sink.AS_LITERALS)
        worker.make(here.prefix, sink)
        there(here, worker, target, query)
        here.sql(
            f"UPDATE every SET id = '{KEY.format(5)}' WHERE id = '{KEY.format(2)}'",
            f"DELETE FROM every WHERE id = '{KEY.format(3)}'",
            f"UPDATE every SET v_text = 'again', v_timestamp = NULL WHERE id = '{KEY.format(1)}'",
            "ALTER TABLE every ADD more timestamptz",
            f"UPDATE every SET more = '2024-02-29 12:00:00.000001Z' WHERE id = '{KEY.format(0)}'",
        )
        there(here, worker, target, "SELECT id, v_text, v_timestamp FROM every ORDER BY id")
        there(here, worker, target, "SELECT count(*) FROM every WHERE more IS NOT NULL")
    added = rows(target, "SELECT more FROM every WHERE more IS NOT NULL")
    assert [str(more) for (more,) in added] == ["2024-02-29 12:00:00.000001"], (
        "the sink made the column as it makes all"
    )
    worker.remove(here.prefix)


def test_a_table_that_the_sink_makes_has_the_types(connector: Maker, worker: ConnectWorker, target: str) -> None:
    here = connector(init=False, source={"tables": ["public.account", "public.made"]})
    here.sql(
        "CREATE TABLE account (id int PRIMARY KEY, version int, note text)",
        "CREATE TABLE made (id uuid PRIMARY KEY, at timestamp, t time, d date, small smallint, j jsonb, n numeric(9,2), net inet)",
    )
    assert here.init().returncode == 0
    with here.carrying():
        here.sql(
            f"INSERT INTO made VALUES ('{KEY.format(1)}', '2024-02-29 12:34:56.123456', '23:59:59.999999', '0044-03-15', 7, "
            "'{\"a\": 1.50}', 1.50, '10.0.0.1/8')"
        )
        worker.make(here.prefix, jdbc_sink.settings([f"{here.prefix}.public.made"], here.reader.registry_url, target))
        there(here, worker, target, "SELECT id, at, t, d, small, j::text, n, net FROM made")
    types = "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 'made'::regclass AND attnum > 0"
    assert dict(rows(target, types)) == {
        "id": "uuid",
        "at": "timestamp(6) without time zone",
        "t": "time(6) without time zone",
        "d": "date",
        "small": "smallint",
        "j": "json",
        "n": "numeric(9,2)",
        "net": "inet",
    }
    worker.remove(here.prefix)


def succeeds(line: str) -> bool:
    return subprocess.run(["bash", "-c", line], capture_output=True, check=False).returncode == 0


def test_the_sink_reads_everything_again(connector: Maker, worker: ConnectWorker, target: str) -> None:
    """As docs/use/clients.md says, while the connector is stopped."""
    here = connector(kafka={"partitions": 1})
    query = "SELECT id, version, note FROM account ORDER BY id"
    (again,) = (box for box in boxes_of("docs/use/clients.md", "sh") if box.startswith("curl"))
    with here.carrying():
        here.sql("INSERT INTO account VALUES (1, 1, 'a'), (2, 1, 'b')", "UPDATE account SET version = 2 WHERE id = 1")
        worker.make(here.prefix, jdbc_sink.settings([here.table("account")], here.reader.registry_url, target))
        there(here, worker, target, query)
        prepare(target, "DELETE FROM account")
        for line in with_ours(again, {"http://127.0.0.1:8083": worker.url, "my-sink": here.prefix}).splitlines():
            # The worker refuses the second while the tasks are still ending.
            wait_until(partial(succeeds, line), 60, line)
        there(here, worker, target, query)
    worker.remove(here.prefix)


@pytest.mark.parametrize(("placeholders", "arrives"), [(False, None), (True, "__debezium_unavailable_value")])
def test_an_unchanged_large_value_arrives_as_the_page_says(
    connector: Maker, worker: ConnectWorker, target: str, placeholders: bool, arrives: str | None
) -> None:
    """What the sink writes for a value that PostgreSQL did not send; with REPLICA IDENTITY FULL it
    is sent.
    """
    here = connector(
        init=False, source={"tables": ["public.account", "public.large"]}, kafka={"placeholders": placeholders}
    )
    here.sql(
        "CREATE TABLE account (id int PRIMARY KEY, version int, note text)",
        "CREATE TABLE large (id uuid PRIMARY KEY, n int, body text)",
        "ALTER TABLE large ALTER body SET STORAGE EXTERNAL",
    )
    assert here.init().returncode == 0
    body = "repeat('x', 10000)"
    with here.carrying():
        here.sql(f"INSERT INTO large VALUES ('{KEY.format(1)}', 1, {body})")
        worker.make(here.prefix, jdbc_sink.settings([f"{here.prefix}.public.large"], here.reader.registry_url, target))
        there(here, worker, target, "SELECT n, body FROM large")
        here.sql("UPDATE large SET n = 2")
        there(here, worker, target, "SELECT n FROM large")
        assert rows(target, "SELECT body FROM large") == [(arrives,)]
        here.sql("ALTER TABLE large REPLICA IDENTITY FULL", f"UPDATE large SET n = 3, body = {body} || 'y'")
        there(here, worker, target, "SELECT n, body FROM large")
        here.sql("UPDATE large SET n = 4")
        there(here, worker, target, "SELECT n, body FROM large")
    worker.remove(here.prefix)
