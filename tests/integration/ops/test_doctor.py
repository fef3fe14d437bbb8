"""Broken set-ups on real servers: doctor names what was broken, before anything else that is new,
and what it says repairs it.
"""

from __future__ import annotations

import json
import re
import resource
import shlex
import subprocess
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from fixtures.connector import Installation, Maker, wait_until
from fixtures.stack import VERSION
from helpers.topic_changes import alter_topic, delete_topic
from twofold.doctor import Finding, Severity, examine
from twofold.doctor.machine import FILES_MIN
from twofold.stack import PostgresServer, temporary_folder

pytestmark = pytest.mark.core


@dataclass
class Ground:
    """An installation, and what a repair may need beside it."""

    bank: Installation
    bootstrap: str
    server: PostgresServer | None = None
    held: ExitStack = field(default_factory=ExitStack)
    changed: set[str] = field(default_factory=set)
    """Settings that ALTER SYSTEM has set."""

    def look(self) -> tuple[Finding, ...]:
        return examine(self.bank.config)

    def alter(self, topic: str, setting: str) -> None:
        name, _, value = setting.partition("=")
        alter_topic(self.bootstrap, topic, name, value)

    def apply(self, statement: str) -> None:
        """Do what it says, as a person would."""
        bank = self.bank
        if statement.startswith("--"):
            if statement.endswith("restart PostgreSQL"):
                self.restart()
        elif statement.startswith("twofold "):
            arguments = [*statement.split()[1:], *(["--yes"] if "reset" in statement else [])]
            bank.twofold(*arguments, ok=True)
        elif statement.startswith("kafka-configs "):
            words = shlex.split(statement)
            self.alter(words[words.index("--entity-name") + 1], words[words.index("--add-config") + 1])
        elif statement.startswith("curl "):
            put(statement)
        elif setting := re.match(r"(\w+)\.(\w+) = ", statement):
            part, name = setting.groups()
            bank.configure({part: {name: tomllib.loads(statement)[part][name]}})
        else:
            bank.sql(statement)
            if changed := re.match(r"ALTER SYSTEM SET (\w+)", statement):
                self.changed.add(changed[1])

    def restart(self) -> None:
        """What ALTER SYSTEM has set does not override the command line: it goes from there."""
        assert self.server is not None
        self.held.close()
        for name in self.changed:
            self.server._settings.pop(name, None)
        self.server.restart()


def put(statement: str) -> None:
    words = shlex.split(statement)
    header, _, value = words[words.index("-H") + 1].partition(": ")
    data = words[words.index("-d") + 1].encode()
    with urlopen(Request(words[-1], data, {header: value}, method="PUT"), timeout=10) as answer:
        assert answer.status < 300


@dataclass(frozen=True)
class Case:
    check: str
    severity: Severity
    spoil: Callable[[Ground], Any]
    repairs: bool = True
    afterwards: Callable[[Ground], Any] = lambda ground: None


def sql(*statements: str) -> Callable[[Ground], None]:
    def spoil(ground: Ground) -> None:
        ground.bank.sql(*(statement.replace("BANK", ground.bank.prefix) for statement in statements))

    return spoil


def settings(**parts: dict[str, Any]) -> Callable[[Ground], None]:
    return lambda ground: ground.bank.configure(parts)


def as_role(options: str) -> Callable[[Ground], None]:
    """The connector gets a role of its own."""

    def spoil(ground: Ground) -> None:
        role = f"{ground.bank.prefix}_role"
        ground.bank.sql(f"CREATE ROLE {role} LOGIN {options}", f"GRANT USAGE ON SCHEMA public TO {role}")
        ground.bank.configure({"source": {"dsn": make_conninfo(ground.bank.conninfo, user=role)}})

    return spoil


def without_role(ground: Ground) -> None:
    role = f"{ground.bank.prefix}_role"
    ground.bank.configure({"source": {"dsn": ground.bank.conninfo}})
    ground.bank.sql(f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def steps(*each: Callable[[Ground], Any]) -> Callable[[Ground], None]:
    def spoil(ground: Ground) -> None:
        for step in each:
            step(ground)

    return spoil


def topic(name: str, setting: str) -> Callable[[Ground], None]:
    return lambda ground: ground.alter(f"{ground.bank.prefix}.{name}", setting)


def registry(what: str, value: dict[str, str]) -> Callable[[Ground], None]:
    def spoil(ground: Ground) -> None:
        url = ground.bank.config.registry.url
        put(
            f"curl -X PUT -H 'Content-Type: application/vnd.schemaregistry.v1+json' -d '{json.dumps(value)}' {url}/{what}"
        )

    return spoil


def few_files(ground: Ground) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES_MIN - 1, hard))  # this process may have hundreds open
    ground.held.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))


def a_file_for_a_folder(ground: Ground) -> None:
    file = ground.bank.folder / "a_file"
    file.write_text("")
    ground.bank.configure({"spool": {"folder": str(file / "spool")}})


MUST, SHOULD, NOTE = Severity.MUST, Severity.SHOULD, Severity.NOTE


def prepare(ground: Ground) -> None:
    ground.bank.prepare(ground.bank.prefix, "INSERT INTO account VALUES (77, 0, 'x')")
    ground.bank.configure({"prepared": {"doubt_warning": 0.001}})


INITIALISED = {
    "a table without a key": Case(
        "no_key",
        SHOULD,
        sql("CREATE TABLE keyless (a int)", 'ALTER PUBLICATION "BANK" ADD TABLE keyless'),
        afterwards=sql("DROP TABLE keyless"),
    ),
    "no replica identity": Case("identity_nothing", SHOULD, sql("ALTER TABLE account REPLICA IDENTITY NOTHING")),
    "large values": Case(
        "toast",
        NOTE,
        sql("CREATE TABLE wide (a int PRIMARY KEY, b jsonb)", 'ALTER PUBLICATION "BANK" ADD TABLE wide'),
        afterwards=sql("DROP TABLE wide"),
    ),
    "a role that may not read": Case("may_not_read", MUST, as_role("REPLICATION"), afterwards=without_role),
    "a role that may not replicate": Case(
        "role", MUST, as_role("NOREPLICATION IN ROLE pg_read_all_data"), afterwards=without_role
    ),
    "a role that does not exist": Case(
        "unusable",
        MUST,
        lambda g: g.bank.configure({"source": {"dsn": make_conninfo(g.bank.conninfo, user=f"{g.bank.prefix}_role")}}),
        afterwards=without_role,
    ),
    "a publication of inserts alone": Case(
        "publication_kinds", SHOULD, sql("ALTER PUBLICATION \"BANK\" SET (publish = 'insert')")
    ),
    "a transaction long in doubt": Case(
        "in_doubt", SHOULD, prepare, afterwards=settings(prepared={"doubt_warning": 600})
    ),
    "another two_phase than the slot's": Case("slot_two_phase", MUST, settings(source={"two_phase": False})),
    "another program's slot": Case(
        "slot_foreign",
        MUST,
        steps(
            sql("SELECT pg_create_physical_replication_slot('BANK_other')"),
            lambda g: g.bank.configure({"source": {"slot": f"{g.bank.prefix}_other"}}),
        ),
        afterwards=steps(
            sql("SELECT pg_drop_replication_slot('BANK_other')"),
            lambda g: g.bank.configure({"source": {"slot": g.bank.prefix}}),
        ),
    ),
    "a longer transaction than Kafka allows": Case(
        "transaction_timeout",
        MUST,
        settings(kafka={"transaction_timeout": 7200}),
        afterwards=settings(kafka={"transaction_timeout": 60}),
    ),
    "connections that are closed while transactions are held open": Case(
        "idle_connections",
        SHOULD,
        settings(kafka={"transaction_timeout": 800}, prepared={"hold": 700}),
        afterwards=settings(kafka={"transaction_timeout": 60}, prepared={"hold": 30}),
    ),
    "the progress is deleted by age": Case("cleanup_policy", MUST, topic("progress", "cleanup.policy=delete")),
    "a table's topic is compacted": Case("cleanup_policy", MUST, topic("public.account", "cleanup.policy=compact")),
    "more replicas in sync than there are": Case("in_sync", MUST, topic("commits", "min.insync.replicas=2")),
    "more replicas asked for than there are": Case("replicas", MUST, settings(kafka={"replication": 2})),
    "unclean elections": Case(
        "unclean_election", SHOULD, topic("public.account", "unclean.leader.election.enable=true")
    ),
    "commit records that go before the rows": Case("retention", MUST, topic("commits", "retention.ms=3600000")),
    "commit records up to a size": Case("retention_bytes", MUST, topic("commits", "retention.bytes=1000000")),
    "Kafka away": Case(
        "unusable",
        MUST,
        settings(kafka={"bootstrap": "127.0.0.1:1"}),
        repairs=False,
        afterwards=lambda g: g.bank.configure({"kafka": {"bootstrap": g.bootstrap}}),
    ),
    "PostgreSQL away": Case(
        "unusable",
        MUST,
        settings(source={"dsn": "host=127.0.0.1 port=1 user=postgres"}),
        repairs=False,
        afterwards=lambda g: g.bank.configure({"source": {"dsn": g.bank.conninfo}}),
    ),
    "a database that does not exist": Case(
        "unusable",
        MUST,
        lambda g: g.bank.configure({"source": {"dsn": make_conninfo(g.bank.conninfo, dbname="nowhere")}}),
        repairs=False,
        afterwards=lambda g: g.bank.configure({"source": {"dsn": g.bank.conninfo}}),
    ),
    "the registry away": Case("unusable", MUST, settings(registry={"url": "http://127.0.0.1:1"}), repairs=False),
    "a strict registry": Case(
        "compatibility",
        SHOULD,
        registry("config", {"compatibility": "FULL"}),
    ),
    "a lax registry": Case("compatibility", NOTE, registry("config", {"compatibility": "NONE"})),
    "a spool in memory": Case("spool_tmpfs", SHOULD, settings(spool={"folder": "/dev/shm/twofold"})),
    "more spool than disk": Case("spool_disk", NOTE, settings(spool={"disk": 1 << 50})),
    "a spool below a file": Case("spool_folder", MUST, a_file_for_a_folder, repairs=False),
    "few open files": Case("open_files", SHOULD, few_files, repairs=False),
}


@pytest.fixture(scope="module")
def ground(module_connector: Maker, kafka: Any) -> Ground:
    bank = module_connector(registry={"timeout": 3}, kafka={"call_timeout": 5}, spool={"disk": 1 << 20})
    with bank.carrying():  # makes the tables' topics
        bank.caught_up()
    return Ground(bank, kafka.bootstrap)


def new(ground: Ground, before: tuple[Finding, ...]) -> list[Finding]:
    known = {(finding.check, re.sub(r"\d+", "", finding.what)) for finding in before}
    return [f for f in ground.look() if (f.check, re.sub(r"\d+", "", f.what)) not in known]


TOGETHER = (
    (
        "a table without a key",
        "no replica identity",
        "a publication of inserts alone",
        "a transaction long in doubt",
        "a spool in memory",
        "a lax registry",
    ),
    (
        "another two_phase than the slot's",
        "a longer transaction than Kafka allows",
        "more replicas asked for than there are",
    ),
    (
        "connections that are closed while transactions are held open",
        "large values",
        "a strict registry",
        "more spool than disk",
    ),
    (
        "the progress is deleted by age",
        "a table's topic is compacted",
        "more replicas in sync than there are",
        "unclean elections",
        "commit records that go before the rows",
        "commit records up to a size",
    ),
    ("Kafka away", "PostgreSQL away", "the registry away", "a spool below a file", "few open files"),
    ("no prepared transactions", "no slot left", "no sender left"),
    ("a short keepalive", "a limit on WAL", "too few brokers", "a commit waits for a connector without a slot"),
    ("no keepalive", "synchronous and not named", "init would wait", "an empty publication"),
)
"""Broken things that say nothing of each other: looked for at once, as each look takes long."""


def at_once(cases: dict[str, Case]) -> list[tuple[str, ...]]:
    """Those of TOGETHER, and each other one by itself."""
    groups = [group for group in TOGETHER if cases.keys() >= set(group)]
    grouped = {name for group in groups for name in group}
    return [*groups, *((name,) for name in cases if name not in grouped)]


def tried(ground: Ground, *cases: Case) -> None:
    configured, before = ground.bank.file.read_text(), ground.look()
    try:
        for case in cases:
            case.spoil(ground)
        if any(case.check == "in_doubt" for case in cases):
            wait_until(lambda: any(f.check == "in_doubt" for f in ground.look()))
        found = new(ground, before)
        wanted = Counter((case.check, case.severity) for case in cases)
        assert (found[0].check, found[0].severity) in wanted, found
        assert not wanted - Counter((f.check, f.severity) for f in found), found
        assert all(f.why and f.remedy for f in found)
        repair(ground, before, found, {case.check for case in cases if case.repairs})
    finally:
        ground.held.close()
        for case in reversed(cases):
            case.afterwards(ground)
        parts = tomllib.loads(configured)
        ground.bank.configure({part: values for part, values in parts.items() if isinstance(values, dict)})


def repair(ground: Ground, before: tuple[Finding, ...], found: list[Finding], checks: set[str]) -> None:
    """Do what these findings say, reload and restart last, and look that they are gone."""
    statements = dict.fromkeys(statement for f in found if f.check in checks for statement in f.remedy)
    for statement in sorted(statements, key=lambda words: (words.startswith("--"), "pg_reload_conf" in words)):
        if not statement.startswith("ROLLBACK"):  # of two outcomes one is chosen
            ground.apply(statement)
    if checks:
        left: list[Finding] = []

        def repaired() -> bool:
            left[:] = [finding for finding in new(ground, before) if finding.check in checks]
            return not left

        try:
            wait_until(repaired)
        except AssertionError as error:
            raise AssertionError(f"left: {left}") from error


@pytest.mark.parametrize("names", at_once(INITIALISED), ids=lambda names: names[0])
def test_a_broken_installation(ground: Ground, names: tuple[str, ...]) -> None:
    tried(ground, *(INITIALISED[name] for name in names))


def restarted(ground: Ground, **options: str) -> None:
    assert ground.server is not None
    ground.server._settings.update(options)
    ground.server.restart()


def altered(ground: Ground, name: str, value: str) -> None:
    ground.bank.sql(f"ALTER SYSTEM SET {name} = '{value}'", "SELECT pg_reload_conf()")
    wait_until(
        lambda: ground.bank.ask(
            f"SELECT NOT pending_restart AND reset_val <> boot_val FROM pg_settings WHERE name = '{name}'"
        )
    )


def one_sender(ground: Ground) -> None:
    ground.held.enter_context(psycopg.connect(ground.bank.conninfo, replication="database", autocommit=True))


SERVER = {
    "wal_level": Case("wal_level", MUST, lambda g: restarted(g, wal_level="replica")),
    "no prepared transactions": Case(
        "max_prepared_transactions", NOTE, lambda g: restarted(g, max_prepared_transactions="0")
    ),
    "no slot left": Case(
        "max_replication_slots",
        MUST,
        steps(
            lambda g: restarted(g, max_replication_slots="1"),
            sql("SELECT pg_create_physical_replication_slot('other')"),
        ),
        afterwards=sql("SELECT pg_drop_replication_slot('other')"),
    ),
    "no sender left": Case("max_wal_senders", MUST, steps(lambda g: restarted(g, max_wal_senders="1"), one_sender)),
    "a short keepalive": Case("wal_sender_timeout", SHOULD, lambda g: altered(g, "wal_sender_timeout", "2s")),
    "no keepalive": Case("wal_sender_timeout", SHOULD, lambda g: altered(g, "wal_sender_timeout", "0")),
    "a limit on WAL": Case("max_slot_wal_keep_size", SHOULD, lambda g: altered(g, "max_slot_wal_keep_size", "1GB")),
    "a commit waits for a connector without a slot": Case(
        "synchronous_deadlock", MUST, lambda g: altered(g, "synchronous_standby_names", g.bank.prefix)
    ),
    "synchronous and not named": Case(
        "synchronous",
        SHOULD,
        settings(prepared={"synchronous": True}),
        repairs=False,
        afterwards=settings(prepared={"synchronous": False}),
    ),
    "init would wait": Case(
        "init_waits",
        SHOULD,
        lambda g: g.bank.prepare("x", "SELECT pg_current_xact_id()"),
        repairs=False,
        afterwards=sql("ROLLBACK PREPARED 'x'"),
    ),
    "an empty publication": Case(
        "publication_empty",
        SHOULD,
        sql('CREATE PUBLICATION "BANK"'),
        repairs=False,
        afterwards=sql('DROP PUBLICATION "BANK"'),
    ),
    "too few brokers": Case(
        "replication", MUST, settings(kafka={"replication": 3}), afterwards=settings(kafka={"replication": 1})
    ),
}


@pytest.fixture(scope="module")
def own(module_connector: Maker, kafka: Any) -> Iterator[Ground]:
    """A server that may be spoilt, and a connector that was not initialised."""
    folder: Path = temporary_folder()
    server = PostgresServer(folder / "postgres", version=VERSION)
    server.start()
    try:
        bank = module_connector(conninfo=server.dsn(), init=False, name="doctored")
        yield Ground(bank, kafka.bootstrap, server)
    finally:
        server.stop()


@pytest.mark.parametrize("names", at_once(SERVER), ids=lambda names: names[0])
def test_a_broken_server(own: Ground, names: tuple[str, ...]) -> None:
    if "wal_level" in names and own.server is not None and own.server.version >= 19:
        pytest.skip("with wal_level = replica, PostgreSQL 19 is ready: its first slot turns decoding on")
    tried(own, *(SERVER[name] for name in names))


def without_topic(ground: Ground) -> None:
    delete_topic(ground.bootstrap, f"{ground.bank.prefix}.commits")


def outrun(ground: Ground) -> None:
    """More WAL than the slot may hold."""
    altered(ground, "max_slot_wal_keep_size", "1MB")
    for _ in range(4):
        ground.bank.sql("SELECT pg_logical_emit_message(false, 'x', 'x')", "SELECT pg_switch_wal()")
    ground.bank.sql("CHECKPOINT")
    wait_until(lambda: ground.bank.slot("wal_status") == "lost")
    ground.bank.sql("ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()")


LOST = {
    "the publication was dropped": Case("publication", MUST, sql('DROP PUBLICATION "BANK"')),
    "a topic is gone": Case("topic_gone", MUST, without_topic),
    "the slot was outrun": Case("slot_lost", MUST, outrun),
}


@pytest.mark.parametrize("name", LOST)
def test_what_was_known_is_lost(own: Ground, connector: Maker, kafka: Any, name: str) -> None:
    assert own.server is not None
    own.bank.sql(f"CREATE DATABASE lost_{LOST[name].check}")
    ground = Ground(connector(conninfo=own.server.dsn(f"lost_{LOST[name].check}")), kafka.bootstrap)
    tried(ground, LOST[name])
    ground.bank.sql(f"SELECT pg_drop_replication_slot('{ground.bank.prefix}')")


def test_failover_where_there_are_no_failover_slots_or_no_standby_is_named(ground: Ground) -> None:
    before = ground.look()
    ground.bank.configure({"source": {"failover": True}})
    try:
        (found,) = new(ground, before)
        if int(ground.bank.ask("SHOW server_version_num")) < 170_000:
            assert (found.check, found.severity) == ("failover", MUST)
            ground.apply(found.remedy[0])
            assert not new(ground, before)
        else:
            assert (found.check, found.severity) == ("synchronized_standby_slots", SHOULD)
    finally:
        ground.bank.configure({"source": {"failover": False}})


def test_a_slot_that_was_made_before_failover_was_wanted_is_named(
    connector: Maker, own_postgres: Callable[..., PostgresServer], kafka: Any
) -> None:
    ground = Ground(connector(conninfo=own_postgres(version="17").dsn()), kafka.bootstrap)
    bank = ground.bank
    bank.configure({"source": {"failover": True}})
    remedy = next(each.remedy for each in ground.look() if each.check == "slot_failover")
    _, _, _, statement = shlex.split(remedy[0])
    with psycopg.connect(f"{bank.conninfo} replication=database", autocommit=True) as session:
        session.execute(statement.encode())
    assert bank.slot("failover") is True
    assert "slot_failover" not in {each.check for each in ground.look()}


def test_before_init_it_names_init(connector: Maker) -> None:
    bank = connector(init=False, source={"tables": ["public.account"]})
    bank.sql("CREATE TABLE account (id int PRIMARY KEY)")
    ground = Ground(bank, "")
    found = {finding.check: finding.remedy for finding in ground.look()}
    assert {name: found.get(name) for name in ("slot", "publication", "topics")} == dict.fromkeys(
        ("slot", "publication", "topics"), ("twofold init",)
    )
    ground.apply("twofold init")
    assert not {finding.check for finding in ground.look()} & {"slot", "publication", "topics"}


def test_a_publication_that_init_cannot_make_is_created_first(connector: Maker) -> None:
    bank = connector(init=False, source={"tables": []})
    bank.sql("CREATE TABLE account (id int PRIMARY KEY)")
    ground = Ground(bank, "")
    assert bank.twofold("init").returncode == 3
    (found,) = (finding for finding in ground.look() if finding.check == "publication")
    assert found.severity is MUST
    for statement in found.remedy:
        ground.apply(statement.replace("<schema.table>", "public.account"))
    assert not {finding.check for finding in ground.look()} & {"slot", "publication", "topics"}


def test_the_command_reports_and_its_status_says_whether_it_would_run(ground: Ground) -> None:
    def command() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ground.bank.command("doctor", "--json"), capture_output=True, text=True, check=False, timeout=60
        )

    assert command().returncode == 0
    ground.bank.configure({"source": {"two_phase": False}})
    done = command()
    ground.bank.configure({"source": {"two_phase": True}})
    assert (done.returncode, json.loads(done.stdout)[0]["check"]) == (3, "slot_two_phase")
