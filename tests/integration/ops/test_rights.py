"""Each right that docs/use/security.md grants, taken away by itself: how each command ends, that
what is said names the right, and that the statement which is offered gives it back.

The table in docs/inside/rights.md is what this test sees. `make rights` writes it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka.admin import AclBinding, AclOperation, AdminClient, ResourceType  # type: ignore[attr-defined]

from fixtures.connector import Installation, wait_until
from fixtures.secured import DOCS, Secured, blocks
from helpers.security.secured_bank import bank, rows, scram

pytestmark = pytest.mark.slow

COMMANDS = {
    "init": ("init",),
    "run": ("run",),
    "backfill": ("backfill", "start", "public.accounts"),
    "doctor": ("doctor",),
    "status": ("status",),
    "audit": ("audit",),
}
PAGE = DOCS / "inside" / "rights.md"
HEAD = """# Rights, each taken away

`make rights` takes each right of [Security](../use/security.md) away by itself, and writes this
page. A number is the exit status of a command that is refused. Its message names the right, and so
does `twofold doctor`, whose statement gives the right back. "works" means that the command does not
need the right, or that another right includes it, as `Read` includes `Describe`.

| without | init | run | backfill start | doctor | status | audit |
|---|---|---|---|---|---|---|"""
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


def kafka_rights(secured: Secured) -> Iterator[Right]:
    for acl in (each for script in blocks("use/security.md", "sh") for each in secured.acls(script)):
        if acl.principal == "User:twofold":
            yield _acl(acl)


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
        return f"{self.status}" if self.status else "works"


def run(secured: Secured, made: Installation) -> End:
    """Until a row has come, or it has ended."""
    with_it = made.start(ready=False)
    wait_until(lambda: with_it.dead or "recovered:" in with_it.said(), 60)
    before = rows(secured, "transfers")
    secured.sql("INSERT INTO transfers SELECT coalesce(max(id), 0) + 1, 1 FROM transfers")
    wait_until(lambda: with_it.dead or rows(secured, "transfers") > before, 60)
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


def repair(secured: Secured, statement: str) -> None:
    if statement.startswith("kafka-acls"):
        secured.grant(secured.acls(statement.replace("User:NAME", "User:twofold").replace("PREFIX.", "bank.")))
    else:
        secured.sql(statement)


def test_each_right_is_named_where_it_is_missing(
    granted: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `init` or `run` must have is a must of `doctor`, with the statement that gives it."""
    made = bank(granted, tmp_path, scram(granted, tmp_path), monkeypatch)
    table = [HEAD]
    for right in (*POSTGRES, *kafka_rights(granted)):
        forget(granted, made)
        with without(granted, right):
            seen = {"init": ends(granted, made, "init")}
        forget(granted, made)
        assert made.init().returncode == 0, right
        with without(granted, right):
            seen |= {command: ends(granted, made, command) for command in COMMANDS if command != "init"}
            refused = {command: end for command, end in seen.items() if end.status}
            for command, end in refused.items():
                assert end.status == 3, (right.name, command, end)
                assert right.words in end.said, (right.name, command, end)
            if refused:
                assert "doctor" in refused, (right.name, refused)
                statement = statement_of(seen["doctor"].said, right.statement or right.words)
                assert statement is not None, (right.name, seen["doctor"])
                repair(granted, statement)
                assert {command: ends(granted, made, command).status for command in ("run", "doctor", "status")} == {
                    "run": 0,
                    "doctor": 0,
                    "status": 0,
                }, right
        table.append(f"| {right.name} | {' | '.join(str(seen[command]) for command in COMMANDS)} |")
    found = "\n".join(table) + "\n"
    if named := os.environ.get("TWOFOLD_RIGHTS"):
        Path(named).write_text(found)
    assert PAGE.read_text() == found
