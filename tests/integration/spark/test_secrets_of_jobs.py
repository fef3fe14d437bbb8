"""A job's secrets are in files, and in nothing that others may read: command lines, environments,
Spark's event log, Spark's web page, what the job says. What lies open is found there.
"""

from __future__ import annotations

import os
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fixtures.spark import Lake
from helpers.spark import process as spark_process
from helpers.spark.writer import table
from twofold.stack.process import choose_port
from twofold_common import java

SECRET, OPEN, KEY = "hunter2-of-a-job", "lies-in-the-open", "key-of-a-row"
CATALOG = f"credential=me:{SECRET}\nheader.Authorization=Basic {SECRET}\ntoken={SECRET}\ns3.secret-access-key={SECRET}\njdbc.password={SECRET}\n"
LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
CLIENT = f'sasl.jaas.config={LOGIN} required username="me" password="{SECRET}";\nssl.key.password={SECRET}\n'
DEFAULTS = """
spark.eventLog.enabled true
spark.eventLog.dir {events}
spark.eventLog.compress false
spark.note {open}
"""
USERS_SESSION = """
import sys
from pyspark.sql import SparkSession
from twofold_spark import session
from twofold_spark.job import cli

port, *line = sys.argv[1:]
settings = session.local_settings("/tmp", memory="512m")
settings |= {"spark.ui.enabled": "true", "spark.ui.port": port, "spark.planted": "lies-in-the-open"}
SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
sys.exit(cli.main(line))
"""
"""As in a notebook or under spark-submit: with a web page."""


@dataclass
class Seen:
    """All that others may read of a job, by what it is."""

    commands: list[str]
    environments: list[str]
    pages: list[str]
    said: str
    events: str

    def has(self, text: str) -> set[str]:
        """Where the text is."""
        texts = {name: value if isinstance(value, str) else "".join(value) for name, value in vars(self).items()}
        return {name for name, value in texts.items() if text in value}


@pytest.fixture
def carried(lake: Lake, tmp_path: Path) -> Lake:
    """Two batches of rows: the second one merges into rows that are there."""
    (tmp_path / "catalog.properties").write_text(CATALOG)
    (tmp_path / "client.properties").write_text(CLIENT)
    (tmp_path / "events").mkdir()
    defaults = DEFAULTS.format(events=(tmp_path / "events").as_uri(), open=OPEN)
    (tmp_path / "spark-defaults.conf").write_text(defaults)
    lake.writer.table(table("t", {"id": "text", "v": "text"}), partitions=1)
    write(lake, "one")
    return lake


def write(lake: Lake, value: str) -> None:
    with lake.writer.commit() as tx:
        tx.upsert("t", {"id": KEY, "v": value})


def watch(lake: Lake, folder: Path, port: int | None = None) -> Seen:
    """Run a mirror for two cuts; with the user's session, if its page has a port."""
    files = ("--catalog-file", str(folder / "catalog.properties"), "--kafka-file", str(folder / "client.properties"))
    environment = {"SPARK_CONF_DIR": str(folder), "JAVA_HOME": str(java.spark_java_home()), "NOTE": OPEN}
    program = ("-m", "twofold_spark") if port is None else ("-c", USERS_SESSION, str(port))
    arguments = ("--trigger", "interval=200ms", *files)
    with spark_process.running(lake, *arguments, environment=environment, program=program) as process:
        spark_process.cuts(process, 1)
        write(lake, "two")
        spark_process.cuts(process, 1)
        commands, environments = of_the_group(process.pid, "cmdline"), of_the_group(process.pid, "environ")
        pages = list(pages_of(f"http://127.0.0.1:{port}")) if port is not None else []
        said = end(process)
    logged = (file for file in (folder / "events").rglob("*") if file.is_file())
    return Seen(commands, environments, pages, said, "".join(file.read_text() for file in logged))


def end(process: subprocess.Popen[str]) -> str:
    process.terminate()
    return spark_process.finish(process, within_s=60)


def of_the_group(group: int, name: str) -> list[str]:
    """These files of the processes of a group, as others on the machine may read them."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.getpgid(int(process.name)) == group:
                found.append((process / name).read_bytes().decode().replace("\0", " "))
        except (ProcessLookupError, FileNotFoundError):
            continue  # it has ended
    return found


def pages_of(address: str) -> Iterator[str]:
    """Each page of Spark's that another one leads to, and what its interface answers."""

    def get(path: str) -> str:
        with urllib.request.urlopen(address + path, timeout=60) as answer:
            return str(answer.read().decode(errors="replace"))

    applications = "/api/v1/applications"
    found = re.search(r'"id" : "(\S+)"', get(applications))
    assert found is not None
    its = f"{applications}/{found[1]}"
    waiting = ["/jobs/", *(f"{its}/{name}" for name in ("environment", "jobs", "stages?details=true", "executors"))]
    waiting.append(f"{its}/sql?details=true&planDescription=true&offset=0&length=1000")
    met = set(waiting)
    while waiting:
        page = get(waiting.pop())
        yield page
        leads_to = {each.replace("&amp;", "&") for each in re.findall(r'href="(?:http://[^/"]+)?(/[^"#]+)"', page)}
        new = {each for each in leads_to if not re.search(r"/static/|/kill|Flamegraph|taskThreadDump", each)} - met
        met |= new
        waiting += new


def test_secrets_of_a_job_are_in_no_command_line_and_no_event(carried: Lake, tmp_path: Path) -> None:
    seen = watch(carried, tmp_path)
    assert seen.has(str(tmp_path / "catalog.properties")) >= {"commands"}, "the job's own line is among them"
    assert seen.has("org.apache.spark.deploy.SparkSubmit") >= {"commands"}
    assert seen.has(f"spark.sql.catalog.{carried.catalog}.credential") == {"events"}
    assert seen.has(SECRET) == set()
    assert seen.has(OPEN) == {"environments", "events"}


def test_secrets_of_a_job_in_a_users_session_are_on_no_page(carried: Lake, tmp_path: Path) -> None:
    """Nor is the key of a row: only merges into large tables list keys."""
    seen = watch(carried, tmp_path, choose_port(None, "Spark's page"))
    assert seen.has("SparkListenerSQLExecutionStart") == {"events"}
    assert seen.has(f"spark.sql.catalog.{carried.catalog}.credential") == {"events", "pages"}
    assert seen.has(SECRET) == set()
    assert seen.has(OPEN) == {"commands", "environments", "events", "pages"}
    assert seen.has(KEY) == set()
