"""Connectors against servers with TLS, passwords and access control, with exactly the rights that
docs/use/security.md grants; and no secret in anything they say.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from fixtures.connector import Installation, wait_until
from fixtures.secured import SECRETS, Secured
from helpers.pages import boxes_of
from helpers.security.secured_bank import bank, mtls, oauth, rows, scram
from twofold.doctor import Severity, examine
from twofold_common.errors import TwofoldError
from twofold_reader import Reader, wait
from twofold_reader.frontiers import FrontierTopics
from twofold_reader.schemas import schemas_at


def run(made: Installation, *arguments: str) -> str:
    """What a command says; it must succeed."""
    done = subprocess.run(made.command(*arguments), capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, (arguments, done.stdout, done.stderr)
    return done.stdout + done.stderr


def test_the_rights_of_the_page_suffice_and_no_secret_is_told(granted: Secured, tmp_path: Path) -> None:
    made = bank(granted, tmp_path, scram(granted, tmp_path))
    said = [run(made, "config", "show"), run(made, "init")]
    first = made.start()
    granted.sql("INSERT INTO accounts VALUES (2, 'bert')")
    granted.sql("BEGIN; INSERT INTO transfers VALUES (1, 10); PREPARE TRANSACTION 'maybe'")
    wait_until(lambda: '"in_kafka": "open"' in made.twofold("prepared", "list", "--json", ok=True).stdout)
    said += [run(made, "prepared", "list"), run(made, "status"), run(made, "doctor"), run(made, "backfill", "status")]
    assert rows(granted, "transfers") == 0
    granted.sql("COMMIT PREPARED 'maybe'")
    wait_until(lambda: rows(granted, "transfers") == 1)
    wait_until(lambda: rows(granted, "accounts") >= 2)  # one was loaded, one was streamed, and perhaps loaded as well
    before = rows(granted, "accounts")
    made.twofold("backfill", "start", "public.accounts", ok=True)
    wait_until(lambda: rows(granted, "accounts") >= before + 2)
    found = examine(made.config)
    assert [f for f in found if f.severity is Severity.MUST] == []
    said.append(Path(f"/proc/{first.process.pid}/cmdline").read_text())
    first.stop()
    said += [first.said(), str(found), repr(made.config)]
    for text in said:
        assert not re.search("hunter2|bert", text)  # neither a secret nor a row's value


def test_a_reader_of_whole_transactions_needs_one_right(
    granted: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of docs/use/reader.md, and none on a consumer group."""
    made = bank(granted, tmp_path, scram(granted, tmp_path))
    made.twofold("init", ok=True)
    run = made.start()
    before = rows(granted, "accounts")
    granted.sql(f"INSERT INTO accounts VALUES ({before + 5000}, 'dora')")
    wait_until(lambda: rows(granted, "accounts") > before)
    run.stop()
    certificate, key = granted.authority.sign("reader")
    kafka = {
        "bootstrap.servers": granted.mtls,
        "security.protocol": "SSL",
        "ssl.ca.location": str(granted.authority.certificate),
        "ssl.certificate.location": str(certificate),
        "ssl.key.location": str(key),
    }
    monkeypatch.setenv("SSL_CERT_FILE", str(granted.authority.certificate))
    registry = granted.registry.replace("https://", f"https://twofold:{SECRETS['registry']}@")
    with Reader("bank", kafka, registry) as reader, pytest.raises(TwofoldError, match="grant Read on"):
        list(reader.transactions("beginning", follow=False))
    (right,) = (box for box in boxes_of("docs/use/reader.md", "sh") if box.startswith("kafka-acls"))
    granted.grant(granted.acls(right))

    def owners() -> list[str]:
        with Reader("bank", kafka, registry, tables=["public.accounts"]) as reader:
            every = reader.transactions("beginning", follow=False)
            return [each.after["owner"] for transaction in every for each in transaction.changes if each.after]

    assert "dora" in owners()
    wait("0/1", "bank", kafka, registry)
    admin = AdminClient({"bootstrap.servers": granted.kafka.bootstrap})
    admin.create_topics([NewTopic("bank.frontiers", 1, 1)])["bank.frontiers"].result()
    try:
        with closing(FrontierTopics(["bank"], kafka, schemas_at(registry))) as frontiers:
            frontiers.begin()
            wait_until(lambda: frontiers.read_more(0.1) or frontiers.is_at_end)
    finally:  # doctor would find fault with its settings in other tests of these servers
        admin.delete_topics(["bank.frontiers"])["bank.frontiers"].result()
        wait_until(lambda: "bank.frontiers" not in admin.list_topics(timeout=10).topics)


@pytest.mark.parametrize("way", [mtls, oauth], ids=["mtls", "oauthbearer"])
def test_another_way_in(granted: Secured, tmp_path: Path, way: Callable[[Secured, Path], dict[str, Any]]) -> None:
    made = bank(granted, tmp_path, way(granted, tmp_path))
    made.twofold("init", ok=True)
    before = rows(granted, "accounts")
    with_it = made.start()
    granted.sql(f"INSERT INTO accounts VALUES ({before + 1000}, 'carl')")
    wait_until(lambda: rows(granted, "accounts") > before)
    assert [f for f in examine(made.config) if f.severity is Severity.MUST] == []
    with_it.stop()
    assert "hunter2" not in with_it.said()


@pytest.mark.parametrize(
    ("resource", "command"),
    [
        ("--topic bank.", "init"),
        ("--cluster", "run"),
        ("--transactional-id bank.", "init"),
    ],
    ids=lambda word: word.split()[0].strip("-"),
)
def test_without_a_right_it_ends_and_says_which(granted: Secured, tmp_path: Path, resource: str, command: str) -> None:
    made = bank(granted, tmp_path, scram(granted, tmp_path))
    if command == "run":
        made.twofold("init", ok=True)
    page = [
        line for script in boxes_of("docs/use/security.md", "sh") for line in script.replace("\\\n", " ").splitlines()
    ]
    (line,) = (each for each in page if resource in each and "User:twofold" in each)
    acls = granted.acls(line)
    granted.revoke(acls)
    try:
        if command == "run":
            error = made.refusal()
            status, said = error.exit_status, str(error)
        else:
            done = made.twofold(command)
            status, said = done.returncode, done.stderr
        assert status == 3, said
        assert "grant" in said
    finally:
        granted.grant(acls)


def test_doctor_has_the_statement_that_grants_what_is_missing(granted: Secured, tmp_path: Path) -> None:
    made = bank(granted, tmp_path, scram(granted, tmp_path))
    made.twofold("init", ok=True)  # the topics are there: their rights can be asked for
    grant = "kafka-acls --add --allow-principal User:twofold"
    for right in (
        "--operation Write --topic bank. --resource-pattern-type prefixed",
        "--operation DescribeConfigs --cluster",
    ):
        acls = granted.acls(f"{grant} {right}")
        granted.revoke(acls)
        found = wait_until(lambda: [f for f in examine(made.config) if f.check == "acl"])
        assert found[0].severity is Severity.MUST
        granted.grant(granted.acls(found[0].remedy[0]))
        wait_until(lambda: not [f for f in examine(made.config) if f.check == "acl"])


@pytest.mark.parametrize("wrong", ["postgres", "kafka", "registry"])
def test_a_wrong_password_is_told_and_not_shown(granted: Secured, tmp_path: Path, wrong: str) -> None:
    made = bank(granted, tmp_path, scram(granted, tmp_path))
    secret = tmp_path / f"{wrong}.secret"
    secret.write_text(secret.read_text().replace("hunter2", "hunter2x"))
    done = made.init()
    assert done.returncode == (3 if wrong == "kafka" else 4), done.stderr
    assert "hunter2" not in done.stdout + done.stderr
    # What an earlier connector of this name was refused for is told before it.
    found = [f for f in examine(made.config) if f.check != "refused"]
    assert [(f.where, f.check) for f in found][:1] == [("postgresql" if wrong == "postgres" else wrong, "unusable")]
    assert re.search("authentication failed|[Aa]uthentication|denies access", found[0].what), found[0]
    assert "hunter2" not in str(found)
