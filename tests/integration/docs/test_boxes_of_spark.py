"""The boxes of docs/use/spark.md that start a job, and those of a source group, typed with the
names of this machine's servers.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from textwrap import indent

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from fixtures.backfill import ready
from fixtures.connector import Installation, Maker, wait_until
from fixtures.stack import fresh_prefix
from helpers.pages import boxes_of, type_box, with_ours
from helpers.spark.group_lake import transfer
from twofold_common import java

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PAGE = "docs/use/spark.md"
SESSION = """
import json
from pathlib import Path
from twofold_spark.session import open_session
spark = open_session(Path("lake").absolute(), java_home={java!r})
"""


def bank(connector: Maker) -> Installation:
    """Two tables, loaded and changed."""
    made = connector(init=False, source={"tables": ["public.accounts", "public.entries"]})
    made.sql(
        "CREATE TABLE accounts (id int PRIMARY KEY, owner text)",
        "CREATE TABLE entries (id int PRIMARY KEY, account int, amount int)",
        "INSERT INTO accounts VALUES (1, 'anna'), (2, 'bert')",
    )
    made.initialise()
    made.carry()
    ready(made)
    made.sql("INSERT INTO entries VALUES (1, 1, 7), (2, 1, 8)", "DELETE FROM accounts WHERE id = 2")
    # The tombstone behind the delete is the last.
    wait_until(lambda: len(made.reader.read([made.table("accounts")])) == 4)
    return made


@pytest.fixture
def target(connector: Maker) -> str:
    """An empty database for the tables of the mirror in PostgreSQL."""
    return connector(init=False).conninfo


def addresses(here: Installation) -> dict[str, str]:
    return {"127.0.0.1:9092": here.reader.bootstrap, "http://127.0.0.1:8081": here.reader.registry_url}


def read(folder: Path, script: str) -> list[object]:
    """What a script of a user prints as JSON in its last line."""
    (folder / "read.py").write_text(SESSION.format(java=str(java.spark_java_home())) + script)
    done = subprocess.run([sys.executable, "read.py"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return list(json.loads(done.stdout.splitlines()[-1]))


def test_each_job(connector: Maker, target: str, tmp_path: Path) -> None:
    here = bank(connector)
    (box,) = (each for each in boxes_of(PAGE, "") if each.startswith("twofold-spark mirror    "))
    options = box.splitlines()[0].removeprefix("twofold-spark mirror")
    place = conninfo_to_dict(target)
    ours = addresses(here) | {
        "...": options,
        "--prefix shop": f"--prefix {here.prefix}",
        "/lake/delta": str(tmp_path / "lake/delta"),
        "./lake/delta": str(tmp_path / "lake/delta"),
        "host=127.0.0.1 dbname=mirror user=me": target,
        "host=127.0.0.1 dbname=shop user=me": here.conninfo,
        "--trigger interval=1s": "--trigger available-now",
    }
    sinks = ["", f"--sink delta={tmp_path / 'lake/delta'}", f"--sink jdbc='{make_conninfo('', **place)}'"]
    for line in with_ours(with_ours(box, {"...": ours.pop("...")}), ours).splitlines():
        kind = line.split()[1]
        for sink in sinks if kind == "verify" else [""]:
            said = type_box(line.replace("[--sink", sink + " #"), tmp_path)
            if kind == "verify":
                assert "public.accounts: 1 row, equal" in said
                assert "public.entries: 2 rows, equal" in said
    with psycopg.connect(target) as connection:
        assert connection.execute("SELECT owner FROM public.accounts").fetchall() == [("anna",)]


def test_a_source_group(connector: Maker, tmp_path: Path) -> None:
    """Two databases, a transfer between them, and a table that both have alike for a while."""
    east, west = members = [connector() for _ in range(2)]
    group = fresh_prefix()
    for here in members:
        here.configure({"group": {"name": group, "members": [each.prefix for each in members]}})
        here.sql("INSERT INTO account VALUES (1, 7, 'alike')")
        here.start()
    transfer({here.prefix: here for here in members}, "one", 10)
    (jobs,), (of_group, of_shards) = (
        [each for each in boxes_of(PAGE, "") if each.startswith(begin)]
        for begin in ("twofold-spark mirror    ", "twofold-spark mirror ... ")
    )
    options = jobs.splitlines()[0].partition("--prefix")[0].removeprefix("twofold-spark mirror")
    ours = addresses(east) | {
        "--source-group bank": f"--source-group {group}",
        "...": f"{with_ours(options, addresses(east))} --warehouse ./lake --trigger available-now",
    }
    _, of_branches, cut, alike = boxes_of(PAGE, "python")
    script = f"""
from twofold_spark import read_cut
from twofold_spark.session import open_member_catalogs
open_member_catalogs(spark, Path("lake").absolute(), "twofold", {[here.prefix for here in members]})
{of_branches.replace("branches(spark", "found = branches(spark").replace("global_id = '...'", "gid <> ''")}
{cut.replace('cut["', 'both = cut["', 1)}
try:
{indent(alike, "    ")}
    alike = True
except AssertionError:
    alike = False
print(json.dumps([found.count(), sorted(row["amount"] for row in both.collect()), alike]))"""
    names = {
        "127.0.0.1:9092": east.reader.bootstrap,
        "http://127.0.0.1:8081": east.reader.registry_url,
        '"orders"': f'"{east.prefix}"',
        '"stock"': f'"{west.prefix}"',
        "bank_east.public.accounts": f"{east.prefix}.public.transfer",
        "bank_west.public.accounts": f"{west.prefix}.public.transfer",
        "public.currencies": "public.account",
    }

    def shown(*, alike: bool) -> bool:
        type_box(with_ours(of_group, ours), tmp_path)
        return read(tmp_path, with_ours(script, names)) == [2, [-10, 10], alike]

    wait_until(lambda: shown(alike=True), 300, "the mirror shows the transfer")
    west.sql("UPDATE account SET version = 8")
    wait_until(lambda: shown(alike=False), 120, "and that a table is not alike any more")
    elsewhere = ours["..."].replace("./lake", "./shards")
    type_box(with_ours(of_shards, ours | {"...": elsewhere, "public.accounts,sales.*": "public.transfer"}), tmp_path)
    assert list((tmp_path / "shards").rglob("public/transfer/metadata")), "one table of both"
