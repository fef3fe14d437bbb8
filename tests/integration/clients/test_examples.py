"""The programs in examples/ run, and read what their comments say. What docs/use/clients.md says of
reading again is typed into a shell.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from pyspark.sql import SparkSession

from clients.flink_gateway import lock
from fixtures.catalogs import RestCatalogServer
from fixtures.connector import Installation, Maker, wait_until
from fixtures.spark import Lake, new_lake
from helpers.pages import boxes_of, type_box, with_ours
from helpers.spark.duckdb_client import DuckdbProcess, command
from helpers.spark.writer import Writer, table
from twofold.stack import server_files
from twofold_common import java
from twofold_spark.catalog_choice import CatalogChoice

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"
CHANGES = ["r anna", "r bert", "c cleo", "u anna", "d bert"]
"""Behind the backfill's rows comes a change of each kind. One that is rolled back is not there."""
RELOADED = ["t ", "r anna", "r cleo"]


@pytest.fixture(scope="module")
def bank(module_connector: Maker) -> Installation:
    made = module_connector(init=False, source={"tables": ["public.accounts"]}, kafka={"partitions": 1})
    made.sql(
        "CREATE TABLE accounts (id bigint PRIMARY KEY, owner text NOT NULL, balance numeric(12, 2) NOT NULL)",
        "ALTER TABLE accounts REPLICA IDENTITY FULL",
        "INSERT INTO accounts VALUES (1, 'anna', 100), (2, 'bert', 50)",
    )
    made.initialise()
    made.carry()
    topic = made.table("accounts")
    wait_until(lambda: len(made.reader.read([topic])) == 2)
    made.sql("INSERT INTO accounts VALUES (3, 'cleo', 10)")
    made.prepare("never", "UPDATE accounts SET balance = 0")
    made.sql("ROLLBACK PREPARED 'never'")
    made.prepare("gift", "UPDATE accounts SET balance = 70 WHERE id = 1")
    made.sql("COMMIT PREPARED 'gift'", "DELETE FROM accounts WHERE id = 2")
    # The tombstone behind the delete is the last.
    wait_until(lambda: len(made.reader.read([topic])) == 6)
    return made


class Program:
    """An example that reads the topic until it is ended."""

    def __init__(self, bank: Installation, group: str, *line: str, folder: Path, registry: str = "") -> None:
        words = (*line, bank.reader.bootstrap, registry or bank.config.registry.url, bank.table("accounts"), group)
        if line[0] == "mvn":
            words = (*line, "-Dexec.args=" + " ".join(words[len(line) :]))
        self._folder = folder
        self._errors = (folder / "errors").open("w+")
        self._process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=self._errors, text=True, cwd=folder)

    def changes(self, number: int) -> list[str]:
        """Its next lines, each as `op owner`."""
        assert self._process.stdout is not None
        found: list[str] = []
        for told in self._process.stdout:
            line = re.sub(r"\x1b\[[\d;]*m", "", told)  # Maven resets colours even where it has none
            owner = re.search("anna|bert|cleo", line)
            found.append(f"{line[0]} {owner[0] if owner else ''}")
            if len(found) == number:
                return found
        raise AssertionError(f"it ended after {found}: {(self._folder / 'errors').read_text()[-3000:]}")

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.communicate(timeout=60)
        self._errors.close()


def test_the_python_consumer(bank: Installation, tmp_path: Path) -> None:
    with Program(bank, "python", sys.executable, str(EXAMPLES / "python/consumer.py"), folder=tmp_path) as program:
        assert program.changes(len(CHANGES)) == CHANGES


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("go") is None, reason="go is not on this machine")
def test_the_go_consumer(bank: Installation, tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES / "go", tmp_path, dirs_exist_ok=True)
    subprocess.run(["go", "build", "-o", "changes", "."], cwd=tmp_path, check=True)
    with Program(bank, "go", "./changes", folder=tmp_path) as program:
        assert program.changes(len(CHANGES)) == CHANGES


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("mvn") is None, reason="mvn is not on this machine")
def test_the_java_consumer(bank: Installation, tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES / "java", tmp_path, dirs_exist_ok=True)
    address = urlsplit(bank.config.registry.url)
    registry = f"{address.scheme}://{address.netloc}/apis/registry/v2"
    line = ("mvn", "--quiet", "--batch-mode", "compile", "exec:java")
    with Program(bank, "java", *line, folder=tmp_path, registry=registry) as program:
        assert program.changes(len(CHANGES)) == CHANGES


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("mvn") is None, reason="mvn is not on this machine")
def test_the_java_program_puts_the_recorded_transactions_together(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES / "java", tmp_path, dirs_exist_ok=True)
    vector = ROOT / "docs/reference/transactions.json"
    words = ("-Dexec.mainClass=Transactions", f"-Dexec.args={vector}")
    line = ["mvn", "--quiet", "--batch-mode", "compile", "exec:java", *words]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    assert "15 transactions, as expected" in done.stdout, done.stdout + done.stderr


def test_the_boxes_of_rewind(bank: Installation, tmp_path: Path) -> None:
    """A consumer group is moved back; then a reload comes to the same consumer; then the group is
    moved to the moment before the reload, and last with all its topics.
    """
    again, _, reload, _ = boxes(bank, tmp_path)
    python = (sys.executable, str(EXAMPLES / "python/consumer.py"))
    group = f"{bank.prefix}-group"
    with Program(bank, group, *python, folder=tmp_path) as program:
        assert program.changes(len(CHANGES)) == CHANGES
    # Kafka refuses while the group has members.
    assert "Error" not in type_box(again, tmp_path)
    with Program(bank, group, *python, folder=tmp_path) as program:
        assert program.changes(len(CHANGES)) == CHANGES
        before = datetime.now(UTC)
        type_box(reload, tmp_path)
        assert program.changes(len(RELOADED)) == RELOADED
    since = again.replace("--to-earliest", f"--to-datetime {before:%Y-%m-%dT%H:%M:%S}.{before.microsecond // 1000:03}")
    assert since != again
    assert "Error" not in type_box(since, tmp_path)
    with Program(bank, group, *python, folder=tmp_path) as program:
        assert program.changes(len(RELOADED)) == RELOADED
    everything = re.sub(r"--topic \S+", "--all-topics", again)
    assert "Error" not in type_box(everything, tmp_path)
    with Program(bank, group, *python, folder=tmp_path) as program:
        assert program.changes(len(CHANGES) + len(RELOADED)) == CHANGES + RELOADED


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_another_mirror_reads_everything_again(bank: Installation, tmp_path: Path) -> None:
    *_, mirror = boxes(bank, tmp_path)
    first = mirror.replace("lake2", "lake1").replace("--group bank.again ", "")
    assert "--group" not in first
    for box in (first, mirror):
        type_box(box, tmp_path)
    one, two = (tmp_path / lake for lake in ("lake1", "lake2"))
    assert sorted(each.name for each in one.iterdir()) == sorted(each.name for each in two.iterdir())
    verify = f"twofold-spark verify --source '{bank.conninfo}' --prefix {bank.prefix} --warehouse lake2"
    assert "public.accounts: 2 rows, equal" in type_box(verify, tmp_path)


def boxes(bank: Installation, folder: Path) -> list[str]:
    """The commands of the page, for this bank; the folder gets Kafka's command."""
    jars = (*server_files.fetched(lock("console")), *server_files.fetched(server_files.locked("kafka")))
    program = folder / "kafka-consumer-groups"
    words = f"-cp {':'.join(map(str, jars))} org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
    program.write_text(f'#!/bin/sh\nexec {java.for_kafka().program} {words} "$@"\n')
    program.chmod(0o755)
    ours = {
        "127.0.0.1:9092": bank.reader.bootstrap,
        "http://127.0.0.1:8081": bank.config.registry.url,
        "my-group": f"{bank.prefix}-group",
        "bank.toml": str(bank.file),
        "bank.public": f"{bank.prefix}.public",
        "--prefix bank": f"--prefix {bank.prefix}",
    }
    return [with_ours(box, ours) for box in boxes_of("docs/use/clients.md", "sh")]


ACCOUNTS = table("accounts", {"id": "int8", "owner": "text", "balance": "int8"})


def mirrored_twice(lake: Lake) -> None:
    lake.writer.table(ACCOUNTS)
    for balance in (100, 70):
        with lake.writer.commit() as tx:
            tx.upsert("accounts", {"id": 1, "owner": "anna", "balance": balance})
        lake.mirror()


def statements(example: str) -> Iterator[str]:
    for statement in re.sub("^--.*$", "", (EXAMPLES / example).read_text(), flags=re.MULTILINE).split(";"):
        if statement.strip():
            yield statement.strip()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_duckdb_reads_the_mirror(spark: SparkSession, lake_writer: Writer, rest_catalog: RestCatalogServer) -> None:
    choice = CatalogChoice.choose(None, rest_catalog.url, {"warehouse": str(rest_catalog.folder)})
    lake = new_lake(spark, lake_writer, rest_catalog.folder, choice)
    mirrored_twice(lake)
    duckdb = DuckdbProcess()
    try:
        # The process has loaded the extension.
        install, load_it, attach, now, cuts, then = statements("duckdb/mirror.sql")
        assert (install, load_it) == ("INSTALL iceberg", "LOAD iceberg")
        duckdb.ask(attach.replace("http://127.0.0.1:8181", rest_catalog.url))
        assert duckdb.ask(now) == [["anna", 70]]
        (_, name, first), _ = duckdb.ask(cuts)
        assert name == "public.accounts"
        assert duckdb.ask(re.sub(r"\d{19}", str(first), then)) == [["anna", 100]]
    finally:
        duckdb.close()


@pytest.mark.slow
def test_duckdb_reads_the_folder_of_a_mirror(lake: Lake) -> None:
    mirrored_twice(lake)
    query = "SELECT owner, balance, (SELECT max(sequence) FROM twofold.cuts) AS cut FROM public.accounts"
    line = command(str(EXAMPLES / "duckdb/folder.py"), str(lake.warehouse), query)
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert re.search(r"anna\s*│\s*70\s*│\s*2", done.stdout), done.stdout


@pytest.mark.slow
def test_spark_sql_reads_the_mirror(lake: Lake) -> None:
    mirrored_twice(lake)
    now, cuts, then = (
        re.sub(r"\btwofold\.(?=public|twofold)", f"{lake.catalog}.", each) for each in statements("spark/mirror.sql")
    )
    assert [tuple(row) for row in lake.spark.sql(now).collect()] == [("anna", 70)]
    (_, name, first), _ = lake.spark.sql(cuts).collect()
    assert name == "public.accounts"
    assert [tuple(row) for row in lake.spark.sql(re.sub(r"\d{19}", str(first), then)).collect()] == [("anna", 100)]
