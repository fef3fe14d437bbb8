"""What the pages show is typed, with the names of this machine's servers: README.md and the pages
of docs/use whose subjects have no test that types their boxes.
"""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from fixtures.backfill import ready
from fixtures.connector import Maker, Running
from helpers.connector.ledger import SCHEMA
from helpers.connector.outbox import read_events
from helpers.pages import boxes_of, type_box, with_ours


def test_the_readme(connector: Maker, tmp_path: Path) -> None:
    """A role that owns nothing, from the SQL to what doctor says of a connector at work."""
    here = connector(init=False)
    role, address = f"{here.prefix}_role", conninfo_to_dict(here.conninfo)
    here.sql(
        "CREATE TABLE accounts (id int PRIMARY KEY, owner text)",
        "CREATE TABLE transfers (id int PRIMARY KEY, amount int)",
        "INSERT INTO accounts VALUES (1, 'anna')",
    )
    (tmp_path / "secret").write_text("...")
    ours = {
        "bank FOR": f"{here.prefix} FOR",
        "ROLE twofold": f"ROLE {role}",
        "TO twofold": f"TO {role}",
        'name = "bank"': f'name = "{here.prefix}"\nstatus.listen = "127.0.0.1:0"',
        "host=db dbname=bank user=twofold": make_conninfo("", **{**address, "user": role}),
        "/run/secrets/postgres": str(tmp_path / "secret"),
        "kafka-1:9092,kafka-2:9092,kafka-3:9092": here.reader.bootstrap,
        "# replication = 1, min_insync_replicas = 1 ": "replication = 1\nmin_insync_replicas = 1 ",
        "http://registry:8081": here.reader.registry_url,
    }
    here.at_end(here.sql, f"DROP OWNED BY {role}", f"DROP ROLE {role}")
    (statements,), (configuration,) = (boxes_of("README.md", kind) for kind in ("sql", "toml"))
    here.sql(*filter(None, (each.strip() for each in re.sub("--.*", "", with_ours(statements, ours)).split(";"))))
    (tmp_path / "bank.toml").write_text(with_ours(configuration, ours))
    *_, commands = boxes_of("README.md", "")
    install, init, run, doctor = commands.splitlines()
    assert install.startswith("pip install")
    type_box(init, tmp_path)
    words = shlex.split(run, comments=True)
    process = Running([sys.executable, "-m", *words[:2], str(tmp_path / "bank.toml"), words[-1]], tmp_path / "log", {})
    try:
        process.wait_for("backfill of public.accounts: ready, 1 row")
        found = type_box(doctor, tmp_path)
        assert not re.search("^must", found, re.MULTILINE), found
    finally:
        process.stop()


def test_the_commands_of_backfill(connector: Maker) -> None:
    here = connector(init=False, source={"tables": ["public.account"]})
    here.sql("CREATE TABLE account (id int PRIMARY KEY)", "INSERT INTO account VALUES (1)")
    (box,) = boxes_of("docs/use/backfill.md", "")
    init, run, *others = (re.split(r"\s{2,}", line)[0].removeprefix("twofold ") for line in box.splitlines())
    here.twofold(*init.split(), ok=True)
    assert run == "run"
    with here.carrying():
        ready(here)
        *typed, last = others
        both, names = last.rsplit(maxsplit=1)[0], "public.account"
        group, each = both.split()
        for command in (*typed, *(f"{group} {word} {names}" for word in each.split("|"))):
            assert here.twofold(*command.split(), ok=True).stdout, command
        ready(here)


def test_the_statements_of_install_and_the_runbook(postgres: Any) -> None:
    """Settings are written to a file, and taken back."""
    boxes = [*boxes_of("docs/use/install.md", "")[:1], *boxes_of("docs/use/runbook.md", "")]
    statements = [each.strip() for box in boxes for each in re.sub("--.*", "", box).split(";") if each.strip()]
    names = [found[1] for each in statements if (found := re.match(r"ALTER SYSTEM SET (\w+)", each))]
    assert sorted(names) == ["max_prepared_transactions", "max_slot_wal_keep_size", "wal_level"]
    with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
        try:
            for statement in statements:
                connection.execute(statement.encode())
        finally:
            for name in names:
                connection.execute(sql.SQL("ALTER SYSTEM RESET {}").format(sql.Identifier(name)))


def test_the_boxes_of_the_outbox(connector: Maker) -> None:
    by_table, table, by_messages = boxes_of("docs/use/outbox.md", "")
    messages, message = by_messages.split("\n\n")
    here = connector(init=False, source={"tables": ["public.account", "public.outbox"]})
    here.sql(SCHEMA, table)
    here.file.write_text(f"{here.file.read_text()}\n{by_table}\n{messages}\n")
    here.twofold("init", ok=True)
    with here.carrying():
        here.sql(
            "INSERT INTO outbox VALUES (gen_random_uuid(), 'order', '16', 'placed', '{\"placed\": true}')",
            message,
        )
        here.caught_up()
    events, _ = read_events(here)
    assert {(each.topic, each.key, each.value) for each in events} == {
        (f"{here.prefix}.outbox.event.order", key, '{"placed": true}') for key in ("16", "17")
    }


def test_the_box_of_the_data_policy(connector: Maker, tmp_path: Path) -> None:
    (policy,) = (box for box in boxes_of("docs/use/security.md", "toml") if box.startswith("[policy]"))
    (tmp_path / "hash.key").write_text("0f" * 32)
    here = connector(init=False, source={"tables": ["public.account", "public.person"]})
    here.sql(SCHEMA, "CREATE TABLE person (id int PRIMARY KEY, email text, phone text)")
    here.file.write_text(
        f"{here.file.read_text()}\n{with_ours(policy, {'/run/secrets/hash.key': str(tmp_path / 'hash.key')})}"
    )
    here.twofold("init", ok=True)
    with here.carrying():
        here.sql("INSERT INTO person VALUES (1, 'anna@example.org', '0815')")
        here.caught_up()
    (row,) = (seen.value["after"] for seen in here.read("person"))
    assert sorted(row) == ["email", "id"]
    assert re.fullmatch("[0-9a-f]{64}", row["email"])
