"""`make clients`: tries every reader with every type, every kind of change and both replica
identities.

    python -m clients [--readers flink,spark] [--page tests/records/readers-by-type.md]

Takes servers of its own. The last line is JSON; `--page` writes the tables of the page.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from clients import jdbc_sink
from clients.consoles import ConsoleConsumer, kcat_says
from clients.flink_gateway import local_gateway
from clients.flink_tables import DebeziumFormat, UpsertKafka
from clients.jdbc_reader import JdbcSink, JdbcSinkMakesTables
from clients.laboratory import PREFIX, Laboratory, carried
from clients.page import Findings, written
from clients.python_and_spark import ConfluentPython, SparkFromAvro, made_spark
from clients.tables import Table
from clients.trial import TopicReader, Trial
from twofold.stack import temporary_folder

GROUPS = ("console", "python", "spark", "jdbc", "flink")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m clients")
    parser.add_argument("--readers", default=",".join(GROUPS), help=f"with commas: {', '.join(GROUPS)}")
    parser.add_argument("--page", type=Path, help="the page to write; all readers must be tried")
    options = parser.parse_args()
    groups = options.readers.split(",")
    if unknown := set(groups) - set(GROUPS):
        parser.error(f"--readers {','.join(unknown)}: choose from {', '.join(GROUPS)}")
    if options.page and set(groups) != set(GROUPS):
        parser.error("--page needs all readers")
    os.environ["TZ"] = "UTC"  # Python shows Spark's instants in this machine's time.
    time.tzset()
    folder, begun = temporary_folder(), time.monotonic()
    findings = Findings()
    with carried(folder) as laboratory:
        say("all changes are in their topics")
        for group in groups:
            with readers_of(group, folder, laboratory) as readers:
                for reader in readers:
                    tried(reader, laboratory, findings)
        every = next(table for table in laboratory.tables if table.name == "every")
        findings.kcat = kcat_says(laboratory.bootstrap, laboratory.registry, laboratory.topic(every))
    say(f"kcat: {findings.kcat}")
    if options.page:
        options.page.write_text(written(findings))
    shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps({**findings.as_json(), "seconds": round(time.monotonic() - begun)}))
    return 0


def tried(reader: TopicReader, laboratory: Laboratory, findings: Findings) -> None:
    """Each table, and a line of what came of it."""
    trial = Trial(laboratory.dsn, laboratory.rows)
    with ThreadPoolExecutor(reader.at_once) as pool:
        for table, verdicts in pool.map(lambda table: (table, trial.verdicts(reader, table)), laboratory.tables):
            show(reader, table, verdicts, findings)


def show(reader: TopicReader, table: Table, verdicts: dict[str, str], findings: Findings) -> None:
    """Keep and print it."""
    findings.add(reader.name, table, verdicts)
    right = sum(verdict.startswith("right") for verdict in verdicts.values())
    said = next(iter(verdicts.values())) if len(verdicts) == 1 else f"{right} of {len(verdicts)} columns right"
    say(f"{reader.name}: {table.table}: {said}")


@contextmanager
def readers_of(group: str, folder: Path, laboratory: Laboratory) -> Iterator[tuple[TopicReader, ...]]:
    """The readers that share a server, while it runs."""
    place = laboratory.bootstrap, laboratory.registry, PREFIX
    with ExitStack() as ending:
        match group:
            case "console":
                yield (ConsoleConsumer(folder, *place),)
            case "python":
                yield (ConfluentPython(*place),)
            case "spark":
                spark = made_spark(folder / "spark")
                ending.callback(spark.stop)
                yield (SparkFromAvro(spark, *place),)
            case "jdbc":
                worker = jdbc_sink.made_worker(folder / "connect", laboratory.bootstrap)
                ending.callback(worker.stop)
                worker.start()
                target = laboratory.target, laboratory.registry, PREFIX
                yield JdbcSink(worker, *target), JdbcSinkMakesTables(worker, *target)
            case _:
                gateway = local_gateway(folder / "flink")
                ending.callback(gateway.stop)
                gateway.start()
                yield DebeziumFormat(gateway, *place), UpsertKafka(gateway, *place)


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
