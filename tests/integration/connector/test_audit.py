"""`twofold audit` on real topics: nothing is found where a connector had loads, truncates, prepared
transactions of all outcomes and kills; each damage that a late end of a transaction does is found,
named, and repaired by the command that is named.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from fixtures.backfill import ready
from fixtures.connector import Installation, Maker, wait_until
from helpers.connector.vandal import Vandal
from helpers.connector.workload import Workload
from helpers.topic_changes import alter_topic, delete_topic
from twofold.errors import Refused
from twofold.inspect.status_report import read_progress
from twofold.kafka.kafka_settings import open_registry
from twofold.run.lookback import SINCE_LAST_COMMIT, LookbackWindow, check_recent_commits, since_oldest_open


def audit(here: Installation, *options: str) -> tuple[int, dict[str, Any]]:
    """Its exit status, and what it says in JSON."""
    done = here.twofold("audit", "--json", *options)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def reads_kafka(process: subprocess.Popen[str]) -> bool:
    """Whether it has a client's thread."""
    with suppress(FileNotFoundError):  # a thread that ended meanwhile
        return any("rdk:" in each.read_text() for each in Path(f"/proc/{process.pid}/task").glob("*/comm"))
    return False


def words(here: Installation) -> str:
    return here.twofold("audit").stdout


def of(found: dict[str, Any], table: str) -> dict[str, Any]:
    topic: dict[str, Any] = next(t for t in found["topics"] if t["table"] == f"public.{table}")
    return topic


def test_nothing_is_found_where_nothing_is_wrong(connector: Maker) -> None:
    """While it runs too: what came after the look began is left to the next one."""
    here = connector()
    here.sql("INSERT INTO account SELECT n, 0, 'loaded' FROM generate_series(1000, 1400) n")
    work = Workload(here, seed=5)
    for _ in range(2):
        work.running = run = here.start()
        work.run()
        here.caught_up()
        status, found = audit(here)
        assert (status, found["whole"]) == (0, True), found
        work.settle()  # a truncate waits for what is in doubt
        here.sql("TRUNCATE transfer", "INSERT INTO journal VALUES ('behind a truncate')")
        work.running = None
        run.kill9()
        work.run()
    work.running = here.start()
    work.settle()
    here.sql("TRUNCATE account")
    here.twofold("backfill", "start", "public.account", "public.journal", ok=True)
    work.run()
    work.settle()
    here.caught_up()
    begun = {"account", "journal"}
    wait_until(lambda: {t.rpartition(".")[2] for t in reloaded(here)} == begun, what="the commands are executed")
    ready(here)
    topics = here.everything()
    status, found = audit(here)
    assert (status, found["whole"], found["troubles"]) == (0, True, [])
    assert found["commits"] == found["last_sequence"] == len(topics.commits)
    assert sum(t["rows"] for t in found["topics"]) == len(topics.rows)
    assert sum(t["ranges"] for t in found["topics"]) == sum(len(c.value["ranges"]) for c in topics.commits)
    assert all(not t["unjudged_ranges"] and not t["unjudged_rows"] for t in found["topics"])
    assert of(found, "account")["reload"] is not None


def reloaded(here: Installation) -> set[str]:
    """The topics that a reload has begun with a truncate."""
    reloads = (commit for commit in here.records("commits") if commit["kind"] == "reload")
    return {each["topic"] for commit in reloads for each in commit["ranges"]}


@pytest.fixture
def stopped(connector: Maker) -> Installation:
    """A connector that has carried something, and stands."""
    here = connector()
    with here.carrying():
        here.sql("INSERT INTO account SELECT n, 0, 'a row' FROM generate_series(1, 40) n")
        here.sql("INSERT INTO transfer SELECT n, n, n FROM generate_series(1, 40) n")
        here.caught_up()
    assert audit(here)[0] == 0
    return here


def lost(vandal: Vandal, topic: str) -> dict[str, Any]:
    """A late abort took the rows, and the commit record that names them came after."""
    stretch = vandal.write(vandal.rows(topic), commit=False)
    return {"kind": "short", "visible": 0, "declared": 3, "sequence": vandal.record(stretch)}


def torn(vandal: Vandal, topic: str) -> dict[str, Any]:
    """The same, but the late abort came when some of the rows were there."""
    first = vandal.write(vandal.rows(topic), commit=False)
    rest = vandal.write(vandal.rows(topic, 2), commit=True)
    both = type(first)(first.topic, first.partition, first.first, rest.last, 5)
    return {"kind": "short", "visible": 2, "declared": 5, "sequence": vandal.record(both)}


def dirty(vandal: Vandal, topic: str) -> dict[str, Any]:
    """A late commit showed what was rolled back."""
    vandal.write(vandal.rows(topic), commit=True)
    return {"kind": "unexpected", "visible": 3}


def doubled(vandal: Vandal, topic: str) -> dict[str, Any]:
    """A late commit in the middle of a group: its rows came into sight, and once more with their
    commit record.
    """
    vandal.write(vandal.rows(topic), commit=True)
    vandal.record(vandal.write(vandal.rows(topic), commit=True))
    return {"kind": "unexpected", "visible": 3}


@pytest.mark.parametrize("do", [pytest.param(lost, marks=pytest.mark.core), torn, dirty, doubled])
def test_a_damage_is_found_and_the_command_that_is_named_repairs_it(
    do: Callable[[Vandal, str], dict[str, Any]], stopped: Installation
) -> None:
    here, topic = stopped, stopped.table("account")
    expected = do(Vandal(here), topic)
    status, found = audit(here)
    assert (status, found["whole"]) == (5, False)
    (damage,) = of(found, "account")["damages"]
    assert expected.items() <= damage["damage"].items()
    assert not of(found, "transfer")["damages"]
    (trouble,) = found["troubles"]
    assert trouble["repair"] == "twofold backfill start public.account"
    said = words(here)
    assert "at stake:" in said
    assert "repair:   twofold backfill start public.account" in said
    assert audit(here, "--since", str(found["last_sequence"]))[0] == (5 if do is dirty else 0)

    for _ in range(2):  # a restart meets it again
        refusal = here.refusal()
        assert isinstance(refusal, Refused)
        assert refusal.repair == "twofold backfill start public.account; then restart the connector"
        assert damage["damage"]["kind"] == "short" or "named by no commit record" in refusal.what
    here.sql("UPDATE account SET version = version + 1 WHERE id < 10", "INSERT INTO journal VALUES ('meanwhile')")
    here.twofold(*trouble["repair"].split()[1:], ok=True)
    here.start()
    wait_until(lambda: of(audit(here)[1], "account")["reload"], 90, "the reload")
    ready(here, 60)
    here.caught_up()
    status, found = audit(here)
    table = of(found, "account")
    assert (status, found["whole"], table["damages"]) == (0, True, [])
    assert table["past"] == [damage]
    assert f"the reload at commit record {table['reload']} repaired the damage before it" in words(here)
    folded: dict[int, Any] = {}
    for seen in sorted(here.read("account"), key=lambda s: s.offset):
        if seen.key is None:
            folded = {k: v for k, v in folded.items() if v[0] != seen.partition}
        elif seen.value is not None:
            folded[seen.key["id"]] = seen.partition, seen.value["after"]["version"]
    rows = here.ask("SELECT json_object_agg(id, version) FROM account")
    assert {k: v for k, (_, v) in folded.items()} == {int(k): v for k, v in rows.items()}


def test_messages_that_nothing_brings_again_are_told_and_hold_nobody_up(connector: Maker) -> None:
    here = connector()
    run = here.start()
    here.sql("SELECT pg_logical_emit_message(true, 'p', 'a')")
    here.caught_up()
    run.stop()
    vandal = Vandal(here)
    vandal.write(vandal.rows(f"{here.prefix}.messages", 1), commit=True)
    here.start().wait_for("named by no commit record")
    here.caught_up()


def test_only_what_was_written_lately_is_looked_at_unless_somebody_ended_a_transaction(stopped: Installation) -> None:
    """Rows that a prepared transaction wrote before the last commit: seen by the wider look
    alone.
    """
    here = stopped
    vandal = Vandal(here)
    vandal.write(vandal.rows(here.table("account")), commit=True)
    here.twofold("backfill", "start", "public.account", ok=True)
    with here.carrying():
        wait_until(lambda: of(audit(here)[1], "account")["reload"], 90, "the reload")
        ready(here, 60)
        vandal.write(vandal.rows(here.table("transfer")), commit=True)
        time.sleep(SINCE_LAST_COMMIT.before_s + 0.5)
        here.caught_up()
    config, registry = here.config, open_registry(here.config)
    published = {here.table(name) for name in ("account", "transfer", "journal")}

    def look(window: LookbackWindow) -> None:
        check_recent_commits(config, registry, read_progress(config), window, published)

    look(SINCE_LAST_COMMIT)
    with pytest.raises(Refused, match="3 visible records are named by no commit record") as refused:
        look(since_oldest_open(config, 1))
    assert refused.value.repair == "twofold backfill start public.transfer; then restart the connector"


def test_a_clock_that_jumped_is_no_damage(stopped: Installation) -> None:
    """Rows of the future, whose commit record lies before all that the look begins with.

    The topics have the time of those who write, as topics have that somebody else made.
    """
    here, now_ms = stopped, int(time.time() * 1000)
    for topic in (here.table("account"), *(f"{here.prefix}.{name}" for name in ("commits", "progress"))):
        alter_topic(here.reader.bootstrap, topic, "message.timestamp.type", "CreateTime")
    vandal = Vandal(here)
    stretch = vandal.write(vandal.rows(here.table("account")), commit=True, at_ms=now_ms + 3_600_000)
    vandal.record(stretch, at_ms=now_ms)
    vandal.record(at_ms=now_ms + 60_000)
    config = here.config
    registry = open_registry(config)
    check_recent_commits(config, registry, read_progress(config), SINCE_LAST_COMMIT, {here.table("account")})
    vandal.write(vandal.rows(here.table("account")), commit=True, at_ms=now_ms + 3_600_000)
    with pytest.raises(Refused, match=": 3 visible records are named by no commit record"):
        check_recent_commits(config, registry, read_progress(config), SINCE_LAST_COMMIT, {here.table("account")})


def test_a_commit_record_apart_from_its_rows_cannot_be_told_and_harms_nobody(stopped: Installation) -> None:
    """Both are there: a reader sees offsets, and not which transaction a record belongs to."""
    vandal = Vandal(stopped)
    vandal.record(vandal.write(vandal.rows(stopped.table("account")), commit=True))
    assert audit(stopped)[0] == 0


def test_a_commit_record_without_its_progress_is_found(stopped: Installation) -> None:
    """A late commit between the two: the next start refuses, and so does the audit."""
    vandal = Vandal(stopped)
    vandal.record(vandal.write(vandal.rows(stopped.table("account")), commit=True), progress=False)
    status, found = audit(stopped)
    assert status == 5
    (trouble,) = found["troubles"]
    assert "progress record says number" in trouble["what"]
    assert trouble["repair"] in str(stopped.refusal())


def test_numbers_that_are_missing_or_come_again(stopped: Installation) -> None:
    vandal = Vandal(stopped)
    last = audit(stopped)[1]["last_sequence"]
    vandal.record(after=3)
    vandal.record(after=0)
    vandal.record(stream_id="another init's")
    vandal.record()
    status, found = audit(stopped)
    assert status == 5
    assert found["breaks"] == [[last, last + 3], [last + 3, last + 3], [last + 3, last + 4], [last + 4, last + 5]]
    (trouble,) = found["troubles"]
    assert trouble["repair"] == "twofold backfill start public.account public.journal public.transfer"


def test_messages_have_no_table_that_brings_them_again(connector: Maker) -> None:
    here = connector()
    with here.carrying():
        here.sql("SELECT pg_logical_emit_message(true, 'p', 'a'), pg_logical_emit_message(true, 'p', 'b')")
        here.caught_up()
    vandal = Vandal(here)
    number = vandal.record(vandal.write(vandal.rows(f"{here.prefix}.messages", 1), commit=False))
    status, found = audit(here)
    assert status == 5
    assert f"audit --since {number}" in found["troubles"][0]["repair"]
    assert audit(here, "--since", str(number))[0] == 0


@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGINT])
def test_it_ends_at_once_when_it_is_told(number: signal.Signals, stopped: Installation) -> None:
    """An open transaction below a commit record's holds the reading up for as long as it is
    open.
    """
    vandal = Vandal(stopped)
    vandal.open(f"{stopped.prefix}.commits")
    process = subprocess.Popen(stopped.command("audit"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    # Python takes an interrupt within an import for one that nobody caught, and dies of it.
    wait_until(lambda: process.poll() is not None or reads_kafka(process), what="it has loaded the clients")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(3)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said.strip()) == (130, "stopped")
    vandal.abort()


def test_a_topic_that_was_made_again_lacks_what_commit_records_name(connector: Maker) -> None:
    """It was whole: its ranges were taken for rows that are still being written."""
    here = connector(kafka={"partitions": 1})
    with here.carrying():
        here.sql("INSERT INTO account SELECT n, 0, 'old' FROM generate_series(1, 5) n")
        here.caught_up()
    topic = here.table("account")
    delete_topic(here.reader.bootstrap, topic)
    admin = AdminClient({"bootstrap.servers": here.reader.bootstrap})

    def is_made() -> bool:
        (made,) = admin.create_topics([NewTopic(topic, 1, 1)]).values()
        return made.exception(20) is None

    wait_until(is_made)
    done = here.twofold("audit")
    assert done.returncode == 5
    assert "public.account  0 rows in 0 ranges: DAMAGED in 1 place" in done.stdout
    assert "repair:   twofold backfill start public.account" in done.stdout
    here.twofold("backfill", "start", "public.account", ok=True)
    with here.carrying():
        here.until_loaded(60)
        here.caught_up()
    assert audit(here)[0] == 0


def test_a_tables_topic_that_is_gone_is_damage_while_the_table_is_published(connector: Maker) -> None:
    """It was counted as not judged, with status 0."""
    here = connector()
    with here.carrying():
        here.sql("INSERT INTO account SELECT n, 0, 'x' FROM generate_series(1, 50) n")
        here.caught_up()
    topic = here.table("account")
    delete_topic(here.reader.bootstrap, topic)
    done = here.twofold("audit")
    assert done.returncode == 5
    assert f"{topic}: commit records name 3 ranges in partitions that no longer exist" in done.stdout
    assert "repair:   twofold backfill start public.account" in done.stdout
    status, found = audit(here)
    assert (status, found["whole"], found["gone"]) == (5, False, {topic: 3})
    here.twofold("backfill", "start", "public.account", ok=True)
    with here.carrying():
        here.until_loaded(60)
        here.caught_up()
    status, found = audit(here)
    assert (status, found["gone"]) == (0, {})


def test_the_topic_of_a_table_that_is_not_published_may_be_deleted(connector: Maker) -> None:
    """The repair holds for a table that was unpublished while nobody ran: then the pin is older."""
    here = connector()
    with here.carrying():
        here.sql("INSERT INTO account VALUES (1, 0, 'x')")
        here.caught_up()
    here.sql(f'ALTER PUBLICATION "{here.prefix}" DROP TABLE account')
    delete_topic(here.reader.bootstrap, here.table("account"))
    assert audit(here)[0] == 5
    here.twofold("backfill", "start", "public.account", ok=True)
    with here.carrying():
        wait_until(lambda: audit(here)[0] == 0, 60)
