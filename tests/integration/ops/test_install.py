"""docs/use/install.md as a newcomer follows it: their own tables, a PostgreSQL with TLS, a Kafka
with TLS, SASL and ACLs, a registry with a password, from `init` to a mirror table. Only names of
hosts and files are replaced.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest
from psycopg.conninfo import make_conninfo

from fixtures.connector import Running, wait_until
from fixtures.secured import SECRETS, Secured
from helpers.pages import boxes_of
from twofold_common import java

TABLES = """
CREATE TYPE mood AS ENUM ('glad', 'sad');
CREATE TABLE accounts (id bigint PRIMARY KEY, owner text NOT NULL, feels mood, at timestamptz DEFAULT now());
CREATE TABLE transfers (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, source bigint REFERENCES accounts, amount numeric(12, 2), note jsonb);
INSERT INTO accounts SELECT n, 'owner ' || n, 'glad' FROM generate_series(1, 500) n;
INSERT INTO transfers (source, amount) SELECT id, id / 3.0 FROM accounts
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_from_nothing_to_a_mirror(secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secured.sql("CREATE DATABASE bank", "postgres")
    secured.sql(TABLES)
    for statements in boxes_of("docs/use/security.md", "sql"):
        secured.sql(statements)
    for commands in boxes_of("docs/use/security.md", "sh"):
        secured.grant(secured.acls(commands))
    for user in ("twofold", "mirror"):
        secured.scram(user, SECRETS["kafka"])

    their_own = {
        "/etc/twofold/ca.pem": str(secured.authority.certificate),
        "/etc/twofold": str(tmp_path),
        "host=db.example.org": make_conninfo("", host="localhost", hostaddr="127.0.0.1", port=secured.postgres.port),
        "kafka-1.example.org:9093": secured.sasl,
        "https://registry.example.org": secured.registry,
        "/opt/twofold-spark/bin/twofold-spark": str(Path(sys.executable).with_name("twofold-spark")),
        "/srv/lake": str(tmp_path / "lake"),
        'password="..."': f'password="{SECRETS["kafka"]}"',
        "mirror.properties": str(tmp_path / "mirror.properties"),
        "--trigger interval=1s": "--trigger available-now",
    }

    def theirs(text: str) -> str:
        for ours, own in their_own.items():
            text = text.replace(ours, own)
        return text

    (configuration,) = boxes_of("docs/use/install.md", "toml")
    (properties,) = boxes_of("docs/use/install.md", "properties")
    for name, text in {
        "bank.toml": configuration,
        "mirror.properties": properties,
        "kafka.secret": SECRETS["kafka"],
        "postgres.secret": SECRETS["postgres"],
        "registry.secret": SECRETS["registry"],
    }.items():
        (tmp_path / name).write_text(theirs(text))
    # One broker: the page names these two.
    monkeypatch.setenv("TWOFOLD_KAFKA__REPLICATION", "1")
    monkeypatch.setenv("TWOFOLD_KAFKA__MIN_INSYNC_REPLICAS", "1")
    monkeypatch.setenv("TWOFOLD_STATUS__LISTEN", "127.0.0.1:0")

    typed = [
        line for box in boxes_of("docs/use/install.md", "") for line in theirs(box).replace("\\\n", " ").splitlines()
    ]
    steps = [shlex.split(line, comments=True) for line in typed if line.startswith("twofold ")]
    assert [words[3:] for words in steps] == [
        ["config", "check"],
        ["doctor"],
        ["init", "--dry-run"],
        ["init"],
        ["run"],
    ]
    for command in steps[:-1]:
        words = command[1:]
        done = subprocess.run([sys.executable, "-m", "twofold", *words], capture_output=True, text=True, check=False, timeout=120)  # fmt: skip
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        assert not re.search(r"^must", done.stdout, re.MULTILINE)
    run = Running([sys.executable, "-m", "twofold", *steps[-1][1:]], tmp_path / "run.log", {})
    try:
        run.wait_for("recovered:")
        page = wait_until(lambda: re.search(r"http://127\.0\.0\.1:\d+/", run.said()))[0]

        def status() -> dict[str, object]:
            with urlopen(f"{page}api/status") as answer:
                return dict(json.load(answer))

        for table in ("accounts", "transfers"):
            run.wait_for(f"backfill of public.{table}: ready, 500 rows")
        secured.sql(
            "BEGIN; INSERT INTO transfers (source, amount) VALUES (1, 7); PREPARE TRANSACTION 'one'; COMMIT PREPARED 'one'"
        )

        def metrics() -> bytes:
            with urlopen(f"{page}metrics") as answer:
                return bytes(answer.read())

        wait_until(lambda: b"twofold_rows_total 1.0" in metrics())

        (exported,) = (line for line in typed if line.startswith("export "))
        environment = dict(word.split("=", 1) for word in shlex.split(exported)[1:])
        (job,) = (shlex.split(line) for line in typed if "twofold-spark mirror" in line)
        told = {**os.environ, "JAVA_HOME": str(java.spark_java_home()), **environment}
        done = subprocess.run(job, env=told, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr
        assert not re.search("hunter2|cannot publish", done.stderr), done.stderr
        wait_until(lambda: (status()["mirror"] or {}).get("bytes") == 0)  # type: ignore[attr-defined]
        source = f"jdbc:postgresql://127.0.0.1:{secured.postgres.port}/bank?user=postgres"
        check = [sys.executable, "-m", "twofold_spark", "verify", "--source", source, "--prefix", "bank", "--warehouse", str(tmp_path / "lake")]  # fmt: skip
        done = subprocess.run(check, env=told, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        assert {"accounts", "transfers"} <= set(re.findall(r"public\.(\w+)", done.stdout))
        assert "hunter2" not in run.said()
    finally:
        run.stop()
