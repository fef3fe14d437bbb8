"""A job's secrets are in files, and in nothing that others may read: command lines, Spark's event
log, what the job says.
"""

from __future__ import annotations

import os
from pathlib import Path

from fixtures.spark import Lake
from helpers.spark import process as spark_process
from helpers.spark.writer import table

SECRET = "hunter2-of-a-job"
CATALOG = f"credential=me:{SECRET}\ntoken={SECRET}\ns3.secret-access-key={SECRET}\njdbc.password={SECRET}\n"
EVENTS = "spark.eventLog.enabled true\nspark.eventLog.dir {}\nspark.eventLog.compress false\n"


def test_secrets_of_a_job_are_in_no_command_line_and_no_event(lake: Lake, tmp_path: Path) -> None:
    secrets, events = tmp_path / "secrets", tmp_path / "events"
    secrets.write_text(CATALOG)
    events.mkdir()
    (tmp_path / "spark-defaults.conf").write_text(EVENTS.format(events.as_uri()))
    lake.writer.table(table("t", {"id": "int8", "v": "text"}), partitions=1)
    with lake.writer.commit() as tx:
        tx.upsert("t", {"id": 1, "v": "one"})
    arguments = ("--trigger", "interval=1s", "--catalog-file", str(secrets))
    with spark_process.running(lake, *arguments, environment={"SPARK_CONF_DIR": str(tmp_path)}) as process:
        spark_process.cuts(process, 1)
        commands = command_lines(process.pid)
        process.terminate()
        _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    logged = "".join(file.read_text() for file in events.rglob("*") if file.is_file())
    assert any(str(secrets) in line for line in commands), "the job's own line is among them"
    assert any("org.apache.spark.deploy.SparkSubmit" in line for line in commands)
    assert "SparkListenerSQLExecutionStart" in logged
    assert f"spark.sql.catalog.{lake.catalog}.credential" in logged
    assert not [line[:200] for line in (*commands, said, logged) if SECRET in line]


def command_lines(group: int) -> list[str]:
    """Those of a process group, as everybody on the machine may read them."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.getpgid(int(process.name)) == group:
                found.append((process / "cmdline").read_bytes().decode().replace("\0", " "))
        except (ProcessLookupError, FileNotFoundError):
            continue  # it has ended
    return found
