"""What the next command says after `run` has refused, and what each says of a slot that is gone or
another connector's.
"""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from fixtures.connector import Installation, Maker
from fixtures.stack import Kafka
from helpers.topic_changes import alter_topic
from twofold.doctor import Severity, examine
from twofold.errors import Refused, UsageError

INSERT = "INSERT INTO account VALUES ({}, 1, 'x')"


def carry(here: Installation, key: int) -> None:
    with here.carrying():
        here.sql(INSERT.format(key))
        here.caught_up()


def said(here: Installation, *command: str, status: int = 0) -> str:
    done = subprocess.run(here.command(*command), capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def musts(here: Installation) -> dict[str, str]:
    return {each.check: each.what for each in examine(here.config) if each.severity is Severity.MUST}


def test_the_last_refusal_is_known_until_it_is_overcome(connector: Maker, kafka: Kafka) -> None:
    """To every command, in the spool's folder and on another machine; and its last line is JSON."""
    here = connector(log={"format": "json"})
    carry(here, 1)
    alter_topic(kafka.bootstrap, f"{here.prefix}.commits", "retention.bytes", "1000")
    lines = [json.loads(line) for line in said(here, "run", status=5).splitlines()]
    last = lines[-1]
    assert last["error"] == "Refused"
    assert last["exit_status"] == 5
    assert "retention.bytes" in last["message"]
    assert "kafka-configs" in last["repair"]
    assert last["at_stake"]

    alter_topic(kafka.bootstrap, f"{here.prefix}.commits", "retention.bytes", "-1")
    assert last["message"] in said(here, "doctor", status=3)
    shown = said(here, "status")
    assert f"status 5: {last['message']}" in shown
    assert last["repair"] in shown
    (here.folder / "spool" / f"{here.prefix}.refusal.json").unlink()
    found: dict[str, Any] = json.loads(said(here, "status", "--json"))
    assert found["cause"] == last["message"]
    assert found["refusal"]["exit_status"] == 5

    carry(here, 2)
    assert musts(here) == {}
    assert "refused" not in said(here, "status")


def test_a_slot_that_is_gone_has_one_answer(connector: Maker) -> None:
    here = connector()
    carry(here, 1)
    here.sql(f"SELECT pg_drop_replication_slot('{here.prefix}')")
    what = f"slot {here.prefix} no longer exists, and the topics {here.prefix}.* hold its changes up to "
    shown = said(here, "status")
    assert what in shown
    assert "twofold init" not in shown.replace("`twofold reset`, then `twofold init` with another", "")
    assert musts(here)["slot_gone"].startswith(what)
    refusal = here.refusal()
    with pytest.raises(Refused) as refused:
        here.initialise()
    assert str(refusal) == str(refused.value)
    assert what in str(refusal)
    assert musts(here).keys() == {"slot_gone"}


def test_another_databases_slot_is_left_alone(connector: Maker) -> None:
    """A wrong dbname: `reset` drops nothing, `init` makes nothing, and `run` waits for nobody."""
    here, other = connector(), connector()
    other.configure({"source": {"slot": here.prefix}})
    foreign = (
        f"slot {here.prefix} belongs to database db_{here.prefix}, and source.dsn names database db_{other.prefix}"
    )
    assert foreign in said(other, "reset", "--yes", status=2)
    assert here.slot("slot_name") == here.prefix
    assert other.ask("SELECT count(*) FROM pg_publication") == 1
    with pytest.raises(UsageError, match=foreign):
        other.initialise()
    with here.carrying():
        here.caught_up()
        assert foreign in str(other.refusal())
        assert "slot_foreign" in musts(other)
    assert foreign in str(other.refusal())


def test_reset_names_what_it_drops_and_whose_it_is(connector: Maker) -> None:
    here = connector()
    shown = said(here, "reset", "--yes")
    assert f"slot '{here.prefix}' of database db_{here.prefix}" in shown
    assert f"publication '{here.prefix}' of database db_{here.prefix}, which twofold init has made" in shown
    assert here.slot("slot_name") is None
