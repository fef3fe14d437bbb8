"""The data policy behind Kafka: canaries in every column under it are in no table of the mirror or
of the changelog, also where records are put into the quarantine, nor in Spark's event log, and
`verify` says what it does not compare.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from fixtures.connector import Installation, Maker, wait_until
from fixtures.spark import Lake, new_lake
from helpers.connector.canary import TEXT, sings
from helpers.connector.canary_work import CHANGES, RULES, TABLES, CanaryWork, rules
from helpers.reading import ask_registry
from helpers.spark import process as spark_process
from helpers.spark.verified import verification
from twofold.stack.process import choose_port
from twofold_spark.sources.registry import Registry

pytestmark = pytest.mark.timeout(900)
KEY = b"k" * 40


@pytest.fixture
def carried(lake: Lake, connector: Maker, tmp_path: Path) -> Installation:
    """Random work with changes of columns, a first load and a prepared transaction, in Kafka."""
    (tmp_path / "policy.key").write_bytes(KEY)
    policy = {"key_file": str(tmp_path / "policy.key"), "columns": rules(RULES)}
    here = connector(init=False, policy=policy, source={"tables": ["public.person", "public.letter"]})
    here.sql(*filter(str.strip, TABLES.split(";")))
    lake.prefix = here.prefix
    work = CanaryWork(here, seed=3)
    work.some(20)
    here.initialise()
    with here.carrying():
        wait_until(lambda: here.records("commits") and not here.status().backfilling, 120)
        for change in CHANGES:
            work.some(15)
            here.sql(change)
        work.some(15)
        work.end(work.prepare("person"), "COMMIT")
        before = here.ask("SELECT pg_current_wal_insert_lsn() - '0/0'")
        here.sql("INSERT INTO letter (id) VALUES (0)")
        wait_until(lambda: any(r["applied_lsn"] > before for r in here.records("commits")), 120)
    return here


def cells(lake: Lake) -> dict[str, list[bytes]]:
    """Every value of every table that the jobs have made, by the table's name."""
    names = [
        f"{lake.catalog}.{space.namespace}.{table.tableName}"
        for space in lake.spark.sql(f"SHOW NAMESPACES IN {lake.catalog}").collect()
        for table in lake.spark.sql(f"SHOW TABLES IN {lake.catalog}.{space.namespace}").collect()
    ]
    return {
        name: [
            bytes(cell) if isinstance(cell, bytearray) else str(cell).encode()
            for row in lake.spark.table(name).collect()
            for cell in row
        ]
        for name in names
    }


@pytest.mark.slow
def test_policy_leaves_no_canary_in_a_mirror_and_a_quarantine(lake: Lake, carried: Installation) -> None:
    """Nor in what jobs say that put records there: their schemas are gone from the registry."""
    assert_none_in_a_mirror(lake, carried)
    other = new_lake(lake.spark, lake.writer, lake.warehouse / "other")
    other.prefix = carried.prefix
    assert_none_in_a_quarantine(other, carried)


def assert_none_in_a_mirror(lake: Lake, carried: Installation) -> None:
    lake.mirror()
    lake.changelog()
    found = cells(lake)
    assert len(found[f"{lake.catalog}.public.person"]) > 20
    assert len(found) >= 4
    assert not [name for name, values in found.items() if any(map(sings, values))]
    said: list[str] = []
    read_policy = Registry(lake.writer.registry).read_policy
    with verification(lake, lake.prefix, carried.conninfo, said.append, read_policy=read_policy) as verify:
        assert [(each.table, each.buckets) for each in verify.run()] == [("public.letter", 0), ("public.person", 0)]
    assert any("public.person: under a data policy, NOT compared: doc (drop), email (hash)" in line for line in said)


def assert_none_in_a_quarantine(lake: Lake, carried: Installation) -> None:
    for table in ("person", "letter"):
        forget_earlier_schemas(lake, carried.table(table))
    said = [job(lake, "mirror", "--unreadable", "stop", status=5)]
    assert "cannot be decoded; the quarantine table has them" in said[0]
    said += [*watched_mirror(lake), job(lake, "changelog", "--unreadable", "skip", status=0)]
    found = cells(lake)
    quarantined = found[f"{lake.catalog}.twofold.quarantine"]
    for table in ("person", "letter"):
        assert quarantined.count(carried.table(table).encode()) > 20
    assert any(hmac.new(KEY, TEXT.encode(), hashlib.sha256).hexdigest().encode() in each for each in quarantined)
    assert not [name for name, values in found.items() if any(map(sings, values))]
    assert not [text[:200] for text in said if sings(text)]
    logged = "".join(file.read_text() for file in (lake.warehouse / "events").rglob("*") if file.is_file())
    assert f"{lake.catalog}.twofold.quarantine" in logged
    assert not sings(logged)


def forget_earlier_schemas(lake: Lake, topic: str) -> None:
    """Delete all versions of a topic's envelope but the last."""
    versions = f"subjects/{topic}-value/versions"
    numbers = ask_registry(lake.writer.registry, versions)
    assert len(numbers) > 1
    for number in numbers[:-1]:
        ask_registry(lake.writer.registry, f"{versions}/{number}", "DELETE")


def logging_events(lake: Lake) -> dict[str, str]:
    """The environment of a job whose Spark writes an event log."""
    events, conf = lake.warehouse / "events", lake.warehouse / "spark-defaults.conf"
    events.mkdir(exist_ok=True)
    conf.write_text(
        f"spark.eventLog.enabled true\nspark.eventLog.dir {events.as_uri()}\nspark.eventLog.compress false\n"
    )
    return {"SPARK_CONF_DIR": str(conf.parent)}


def job(lake: Lake, command: str, *arguments: str, status: int) -> str:
    """What a job says that ends by itself."""
    line = ("--trigger", "available-now", *arguments)
    environment = logging_events(lake)
    return spark_process.run(lake, *line, command=command, environment=environment, within_s=180, status=status)


def watched_mirror(lake: Lake) -> tuple[str, str]:
    """What a mirror says that goes on without such records, and its metrics."""
    address = f"127.0.0.1:{choose_port(None, 'metrics')}"

    def page() -> str:
        try:
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=20) as answer:
                return str(answer.read().decode())
        except urllib.error.URLError:  # it does not listen yet
            return ""

    arguments = ("--trigger", "interval=200ms", "--unreadable", "skip", "--metrics", address)
    with spark_process.running(lake, *arguments, environment=logging_events(lake)) as process:
        wait_until(lambda: re.search(r"twofold_job_batches_total\S* [1-9]", page()), 180, "a batch is applied")
        metrics = page()
        process.terminate()
        said = spark_process.finish(process, within_s=60)
    return said, metrics
