"""Each right that docs/use/security.md grants, taken away by itself: how each command ends, that
what is said names the right, and that the statement which is offered gives it back.

The tables in docs/inside/rights.md are what these tests see. `make rights` writes them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka.admin import AclBinding, AclOperation, AdminClient, ResourceType  # type: ignore[attr-defined]
from pyspark.sql import SparkSession

from fixtures.connector import Installation, wait_until
from fixtures.secured import DOCS, SECRETS, Secured
from fixtures.stack import Registry
from helpers.pages import boxes_of
from helpers.security.secured_bank import bank, rows, scram
from twofold_spark import session
from twofold_spark.catalog_choice import WAREHOUSE_CATALOG
from twofold_spark.job import cli

pytestmark = pytest.mark.slow

COMMANDS = {
    "init": ("init",),
    "run": ("run",),
    "backfill": ("backfill", "start", "public.accounts"),
    "doctor": ("doctor",),
    "status": ("status",),
    "audit": ("audit",),
}
GROUP = {"name": "mall", "members": ["bank", "shop"]}
PAGE = DOCS / "inside" / "rights.md"
CONNECTOR = "| without | init | run | backfill start | doctor | status | audit |\n|---|---|---|---|---|---|---|"
JOBS = "| without | mirror | changelog |\n|---|---|---|"
_STATEMENT = re.compile(r"(?:GRANT|ALTER ROLE)\b[^;\n]*|kafka-acls .*")


@dataclass(frozen=True)
class Right:
    """`words` must be in what is said about it."""

    name: str
    words: str
    take: Callable[[Secured], None]
    give: Callable[[Secured], None]
    statement: str = ""
    """What tells its statement from others with these words."""


def _sql(name: str, words: str, take: str, give: str) -> Right:
    return Right(name, words, lambda secured: secured.sql(take), lambda secured: secured.sql(give))


POSTGRES = (
    _sql("LOGIN", "LOGIN", "ALTER ROLE twofold NOLOGIN", "ALTER ROLE twofold LOGIN"),
    _sql("REPLICATION", "REPLICATION", "ALTER ROLE twofold NOREPLICATION", "ALTER ROLE twofold REPLICATION"),
    _sql(
        "CONNECT on the database",
        "CONNECT",
        "REVOKE CONNECT ON DATABASE bank FROM twofold, PUBLIC",
        "GRANT CONNECT ON DATABASE bank TO twofold",
    ),
    _sql(
        "USAGE on the schema",
        "USAGE ON SCHEMA",
        "REVOKE USAGE ON SCHEMA public FROM twofold, PUBLIC",
        "GRANT USAGE ON SCHEMA public TO twofold",
    ),
    _sql(
        "SELECT on a table",
        "GRANT SELECT",
        "REVOKE SELECT ON accounts FROM twofold",
        "GRANT SELECT ON accounts TO twofold",
    ),
)


def page_acls(secured: Secured, principal: str) -> Iterator[AclBinding]:
    for acl in (each for script in boxes_of("docs/use/security.md", "sh") for each in secured.acls(script)):
        if acl.principal == f"User:{principal}":
            yield acl


def _acl(acl: AclBinding) -> Right:
    operation = AclOperation(acl.operation).name.title().replace("_", "")
    kind = ResourceType(acl.restype)
    on = "the cluster" if kind is ResourceType.BROKER else f"{kind.name.lower().replace('_', ' ')} {acl.name}"
    return Right(
        f"{operation} on {on}",
        operation,
        lambda secured: secured.revoke([acl]),
        lambda secured: secured.grant([acl]),
        f"--operation {operation}",
    )


@dataclass(frozen=True)
class End:
    status: int
    said: str

    def __str__(self) -> str:
        if self.status:
            return f"{self.status}"
        return "warns" if "kafka-acls" in self.said else "works"


def run(secured: Secured, made: Installation) -> End:
    """Until a row has come, or it has ended."""
    with_it = made.start(ready=False)
    wait_until(lambda: with_it.dead or "recovered:" in with_it.said())
    before = rows(secured, "transfers")
    secured.sql("INSERT INTO transfers SELECT coalesce(max(id), 0) + 1, 1 FROM transfers")
    wait_until(lambda: with_it.dead or rows(secured, "transfers") > before)
    if with_it.dead:
        return End(with_it.process.returncode, with_it.said())
    with_it.stop()
    return End(0, with_it.said())


def ends(secured: Secured, made: Installation, command: str) -> End:
    if command == "run":
        return run(secured, made)
    done = made.twofold(*COMMANDS[command])
    return End(done.returncode, done.stdout + done.stderr)


@contextmanager
def without(secured: Secured, right: Right) -> Iterator[None]:
    right.take(secured)
    try:
        yield
    finally:
        right.give(secured)


def forget(secured: Secured, made: Installation) -> None:
    """As before `init`, whatever the right that is missing does to `reset`."""
    secured.sql("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = 'bank'")
    admin = AdminClient({"bootstrap.servers": secured.kafka.bootstrap})
    names = [name for name in admin.list_topics(timeout=20).topics if name.startswith("bank.")]
    for future in admin.delete_topics(names).values() if names else ():
        future.result(20)
    wait_until(lambda: not [t for t in admin.list_topics(timeout=20).topics if t.startswith("bank.")])


def statement_of(said: str, words: str) -> str | None:
    """The statement in a text that gives the right."""
    return next((line.rstrip(";") for line in _STATEMENT.findall(said) if words in line), None)


def repair(secured: Secured, statement: str, principal: str = "twofold", prefix: str = "bank.") -> None:
    if statement.startswith("kafka-acls"):
        statement = statement.replace("User:NAME", f"User:{principal}").replace("PREFIX.", prefix)
        secured.grant(secured.acls(statement))
    else:
        secured.sql(statement)


def keep(heading: str, head: str, lines: Iterable[str]) -> None:
    """The page has this table under this heading; `make rights` writes it there."""
    found = "\n".join([head, *lines]) + "\n"
    before, title, after = PAGE.read_text().partition(f"\n## {heading}\n")
    section, next_title, others = after.partition("\n## ")
    words, _, table = section.partition(head)
    if named := os.environ.get("TWOFOLD_RIGHTS"):
        Path(named).write_text("".join((before, title, words, found, next_title, others)))
    else:
        assert head + table == found


def row_of(secured: Secured, made: Installation, right: Right) -> str:
    """What each command of the connector does without the right, and with the statement that is
    offered. What `init` or `run` must have is a must of `doctor`.
    """
    forget(secured, made)
    with without(secured, right):
        seen = {"init": ends(secured, made, "init")}
    forget(secured, made)
    assert made.init().returncode == 0, right
    with without(secured, right):
        seen |= {command: ends(secured, made, command) for command in COMMANDS if command != "init"}
        refused = {command: end for command, end in seen.items() if end.status}
        for command, end in refused.items():
            assert end.status == 3, (right.name, command, end)
            assert right.words in end.said, (right.name, command, end)
        if refused:
            assert "doctor" in refused, (right.name, refused)
            statement = statement_of(seen["doctor"].said, right.statement or right.words)
            assert statement is not None, (right.name, seen["doctor"])
            repair(secured, statement)
            again = {command: ends(secured, made, command).status for command in ("run", "doctor", "status")}
            assert again == {"run": 0, "doctor": 0, "status": 0}, right
    cells = ("works" if not seen[command].status else str(seen[command].status) for command in COMMANDS)
    return f"| {right.name} | {' | '.join(cells)} |"


def test_each_right_is_named_where_it_is_missing(granted: Secured, tmp_path: Path) -> None:
    made = bank(granted, tmp_path, scram(granted, tmp_path))
    rights = (*POSTGRES, *map(_acl, (acl for acl in page_acls(granted, "twofold") if acl.name != "shop.")))
    keep("The connector", CONNECTOR, (row_of(granted, made, right) for right in rights))


@dataclass
class Pair:
    """The bank, and a shop that an administrator carries: two members of a source group."""

    secured: Secured
    bank: Installation
    shop: Installation

    def carry(self) -> None:
        """Some rows of both."""
        forget(self.secured, self.bank)
        assert self.bank.init().returncode == 0
        runs = [made.start() for made in (self.bank, self.shop)]
        self.shop.sql("INSERT INTO orders SELECT coalesce(max(id), 0) + 1 FROM orders")
        self.secured.sql("INSERT INTO transfers SELECT coalesce(max(id), 0) + 1, 1 FROM transfers")
        wait_until(lambda: all(made.records("commits") for made in (self.bank, self.shop)))
        wait_until(lambda: all(made.records("frontiers") for made in (self.bank, self.shop)))
        for each in runs:
            each.stop()


@pytest.fixture(scope="module")
def shop(granted: Secured, registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    granted.sql("CREATE DATABASE shop", "postgres")
    granted.sql("CREATE TABLE orders (id bigint PRIMARY KEY)", "shop")
    folder, dsn = tmp_path_factory.mktemp("shop"), granted.postgres.dsn("shop")
    options = {"source": {"tables": ["public.orders"]}, "group": GROUP}
    made = Installation(folder, "shop", dsn, granted.kafka.bootstrap, registry.url, options)
    assert made.init().returncode == 0
    return made


@pytest.fixture
def pair(granted: Secured, shop: Installation, tmp_path: Path) -> Pair:
    made = bank(granted, tmp_path, scram(granted, tmp_path))
    made.configure({"group": GROUP})
    made.reader = shop.reader  # an administrator's
    return Pair(granted, made, shop)


def test_a_member_without_the_right_to_read_another_one_says_so(pair: Pair) -> None:
    rights = (_acl(acl) for acl in page_acls(pair.secured, "twofold") if acl.name == "shop.")
    keep("A member of a source group", CONNECTOR, [row_of(pair.secured, pair.bank, right) for right in rights])


@dataclass
class Jobs:
    """The jobs of the page, as its user `mirror`, each time on tables of their own."""

    spark: SparkSession
    secured: Secured
    folder: Path
    capture: pytest.CaptureFixture[str]
    began: int = 0

    def end(self, command: str, *prefixes: str) -> End:
        self.began += 1
        catalog, warehouse = f"rights{self.began}", self.folder / str(self.began)
        warehouse.mkdir()
        for name, value in WAREHOUSE_CATALOG.settings(str(warehouse), catalog).items():
            self.spark.conf.set(name, value)
        line = [command, "--bootstrap", self.secured.sasl, "--registry", self.secured.registry, "--catalog", catalog]
        line += ["--warehouse", str(warehouse), "--trigger", "available-now", "--kafka-file", str(self.client())]
        self.capture.readouterr()
        status = cli.main([*line, *(f"--prefix={prefix}" for prefix in prefixes)])
        return End(status, self.capture.readouterr().err)

    def client(self) -> Path:
        """The file that Kafka's tools take as --command-config."""
        file = self.folder / "client.properties"
        login = f'org.apache.kafka.common.security.scram.ScramLoginModule required username="mirror" password="{SECRETS["kafka"]}";'
        file.write_text(
            "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\n"
            f"sasl.jaas.config={login}\n"
            f"ssl.truststore.type=PEM\nssl.truststore.location={self.secured.authority.certificate}\n"
        )
        return file


@pytest.fixture
def jobs(
    pair: Pair,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Jobs:
    pair.carry()
    pair.secured.scram("mirror", SECRETS["kafka"])
    monkeypatch.setenv("TWOFOLD_REGISTRY__USERNAME", "twofold")
    monkeypatch.setenv("TWOFOLD_REGISTRY__PASSWORD_FILE", str(pair.bank.folder / "registry.secret"))
    monkeypatch.setenv("TWOFOLD_REGISTRY__CA_FILE", str(pair.secured.authority.certificate))
    monkeypatch.setattr(session, "open_session", lambda *_, **__: spark)
    return Jobs(spark, pair.secured, tmp_path, capsys)


def test_each_right_of_the_mirror_is_named_where_it_is_missing(jobs: Jobs) -> None:
    """The job of a group needs them for each member."""
    acls = list(page_acls(jobs.secured, "mirror"))
    others = [_of_the_shop(acl) for acl in acls if acl.name.startswith("bank.")]
    jobs.secured.grant(others)
    alone = {job: (job, "bank") for job in ("mirror", "changelog")}
    lines = [_row_of_jobs(jobs, _acl(acl), alone) for acl in acls]
    lines += [_row_of_jobs(jobs, _acl(acl), {"mirror": ("mirror", "bank", "shop")}) for acl in others]
    keep("The mirror", JOBS, lines)


def _of_the_shop(acl: AclBinding) -> AclBinding:
    name = acl.name.replace("bank", "shop")
    return AclBinding(acl.restype, name, acl.resource_pattern_type, acl.principal, acl.host, acl.operation, acl.permission_type)  # fmt: skip


def _row_of_jobs(jobs: Jobs, right: Right, commands: Mapping[str, tuple[str, ...]]) -> str:
    right.take(jobs.secured)
    seen = {name: jobs.end(*command) for name, command in commands.items()}
    for name, end in seen.items():
        if str(end) == "works":
            continue
        assert end.status in {0, 3}, (right.name, name, end)
        assert right.words in end.said, (right.name, name, end)
        statement = statement_of(end.said, right.statement)
        assert statement is not None, (right.name, name, end)
        repair(jobs.secured, statement, "mirror", "shop." if "shop" in right.name else "bank.")
        assert str(jobs.end(*commands[name])) == "works", (right.name, name)
        right.take(jobs.secured)
    right.give(jobs.secured)
    return (
        f"| {right.name} | {' | '.join(str(seen[name]) if name in seen else '' for name in ('mirror', 'changelog'))} |"
    )
