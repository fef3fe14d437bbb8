"""Text that somebody else wrote, in every field that is printed: nothing of it is a line of its
own, rules the terminal, or turns text around. What is offered for copying stays exact.
"""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
import types
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest

from twofold import cli
from twofold.cli import audit, backfill, doctor, init, prepared, status, tail
from twofold.cli.terminal import say
from twofold.doctor import Finding
from twofold.doctor.dry_run import InitPlan
from twofold.errors import Refused, SetupError, Unreachable
from twofold.inspect.audit import Audit
from twofold.inspect.changes import TopicChange
from twofold.inspect.in_doubt import InDoubt
from twofold.inspect.load_estimate import LoadEstimate
from twofold.inspect.open_rows import OpenRows
from twofold.inspect.status_report import BackfillStatus, Status
from twofold.inspect.tail import TailBegin, TailEnd
from twofold.watch.logs import set_up
from twofold.watch.page_client import PageAnswer
from twofold.watch.server import Health, StatusServer, StatusSources
from twofold_avro.names import avro_name
from twofold_common.printable import printable, shell_argument, sql_literal
from twofold_common.table_names import split_table_name, sql_identifier, table_argument
from twofold_spark.sources.topic_names import reload_command
from twofold_spark.streaming import print_progress

FORGED = "FORGED 2026-01-01 INFO nothing is wrong"
HOSTILE = f"a\n{FORGED}\r\x1b[2J\x1b]0;t\x07\x9b31m\u202egnp.exe\u2066\u2028{FORGED}\x85\x00b'\\"


def fill(kind: Any) -> Any:
    """A value of the type in which every text is hostile."""
    match get_origin(kind):
        case origin if origin in {Union, types.UnionType}:
            return fill(next(each for each in get_args(kind) if each is not type(None)))
        case origin if origin is Literal:
            return get_args(kind)[0]
        case origin if origin in {tuple, list}:
            inner = [each for each in get_args(kind) if each is not ...]
            return tuple(fill(each) for each in inner)
        case origin if origin is not None:
            return {HOSTILE: 1}
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        make: Any = kind
        return make(**{each.name: fill(hints[each.name]) for each in fields(kind) if each.init})
    if kind is str:
        return HOSTILE
    try:
        return kind(1)
    except TypeError:
        return None


ENVELOPE = {
    "before": None,
    "after": {HOSTILE: HOSTILE},
    "special": [{"row": "after", "column": HOSTILE, "text": HOSTILE}],
    "unchanged": [HOSTILE],
    "message": {"prefix": HOSTILE, "content": HOSTILE},
}
CHANGES = tuple(
    TopicChange(HOSTILE, 0, 0, op, HOSTILE, HOSTILE, ENVELOPE) for op in ("c", "m", "event", "tombstone", HOSTILE)
)


def assert_harmless(out: str) -> None:
    assert "gnp.exe" in out, "the text itself is there"
    assert all(each.isprintable() for each in out.replace("\n", "")), ascii(out)
    assert not any(line.startswith("FORGED") for line in out.split("\n")), ascii(out)


def test_each_field_that_a_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    in_doubt = fill(InDoubt)
    seen = status.Seen(
        status=fill(Status),
        page=fill(PageAnswer),
        loads=(fill(BackfillStatus),),
        mirror_error=HOSTILE,
    )
    away = status.Seen(seen.status, seen.page, kafka_error=Refused(HOSTILE, at_stake=HOSTILE, repair=HOSTILE))
    reports: dict[str, list[str]] = {
        "prepared": prepared._report(in_doubt),
        "doctor": doctor.report(fill(Finding)),
        "audit": audit._report(fill(Audit)),
        "dry run": init._report(fill(InitPlan)),
        "estimate": backfill._estimate_report(fill(LoadEstimate), 3),
        "tail": [tail._line(each) for each in (fill(TailBegin), fill(TailEnd), *CHANGES)],
        "rows": prepared._rows_report(replace(in_doubt, in_kafka="open"), [OpenRows(HOSTILE, HOSTILE, 9, CHANGES)]),
        "source": status._source_lines(seen.status),
        "kafka": status._kafka_lines(seen),
        "away": status._kafka_lines(away),
    }
    for lines in reports.values():
        say(*lines)
        out = capsys.readouterr().out
        assert_harmless(out)
        assert out.count("\n") == len(lines)


ERRORS: dict[str, Callable[[], Exception]] = {
    "refusal": lambda: Refused(HOSTILE, at_stake=HOSTILE, repair=HOSTILE),
    "set-up": lambda: SetupError(HOSTILE),
    "outage": lambda: Unreachable(HOSTILE),
}


@pytest.mark.parametrize("error", ERRORS)
def test_an_error_that_ends_a_command(
    error: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ERRORS[error]()

    monkeypatch.setattr("twofold.cli.version.command.callback", fail)
    monkeypatch.setattr("sys.argv", ["twofold", "version"])
    with pytest.raises(SystemExit):
        cli.main()
    said = capsys.readouterr().err
    assert_harmless(said)
    assert said.startswith("twofold: ")
    print_progress(f"mirror: {ERRORS[error]()}")
    assert_harmless(capsys.readouterr().err)


UNFORESEEN = """
import logging, sys, threading
hostile = sys.stdin.read()
{begin}
logging.getLogger("twofold").warning("of %s", hostile)
def fail():
    raise ValueError(hostile)
thread = threading.Thread(target=fail)
thread.start()
thread.join()
fail()
"""
BEGINS = {
    "connector": "from twofold import cli; sys.argv[1:] = ['version']; cli.main()",
    "jobs": "from twofold_spark.job import cli; sys.argv[1:] = ['jars']; cli.jars.fetch = lambda **_: []; cli.main()",
}


@pytest.mark.parametrize("program", BEGINS)
def test_an_unforeseen_error_and_a_log_that_no_command_has_set_up(program: str) -> None:
    script = UNFORESEEN.format(begin=BEGINS[program])
    text = HOSTILE.replace("\x00", "").encode("utf-8", "surrogatepass")
    done = subprocess.run([sys.executable, "-c", script], input=text, capture_output=True, check=False)
    said = done.stderr.decode()
    assert_harmless(said)
    assert said.count("ValueError: a") == 2
    assert said.count("gnp.exe") == 3


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_log(form: Literal["text", "json"], capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    try:
        set_up(form, "info")
        try:
            raise ValueError(HOSTILE)
        except ValueError:
            logging.getLogger("twofold").exception("of %s", HOSTILE)
    finally:
        root.handlers, root.level = before, level
    out = capsys.readouterr().err
    assert_harmless(out)
    if form == "json":
        (line,) = out.splitlines()
        assert json.loads(line)["message"] == f"of {HOSTILE}", "a machine gets the text itself"
    else:
        assert all(line.startswith(("  ", "20")) for line in out.splitlines())


def test_the_page() -> None:
    sources = StatusSources(lambda _: {HOSTILE: [{"gid": HOSTILE}]}, lambda: b"", lambda: Health(True, True, HOSTILE))
    with StatusServer("127.0.0.1", 0, sources) as server:
        for path in ("api/status", "healthz"):
            with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/{path}", timeout=5) as answer:
                body = answer.read().decode()
            said = json.loads(body) if path == "api/status" else body
            assert_harmless(str([*said, *said[next(iter(said))]]) if isinstance(said, dict) else said)


def test_a_message_on_the_page_keeps_its_lines() -> None:
    refusal = Refused(HOSTILE, at_stake="rows", repair="twofold reset")
    status = {"why": str(refusal), "journal": [{"text": f"{refusal}\n{HOSTILE}"}]}
    sources = StatusSources(lambda _: status, lambda: b"", lambda: Health(False, False, str(refusal)))
    with StatusServer("127.0.0.1", 0, sources) as server:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/api/status", timeout=5) as answer:
            said = json.loads(answer.read())
        with pytest.raises(urllib.error.HTTPError) as unhealthy:
            urllib.request.urlopen(f"http://127.0.0.1:{server.port}/healthz", timeout=5)
        reason = unhealthy.value.read().decode()
    for text in (said["why"], said["journal"][0]["text"], reason):
        assert_harmless(text)
        assert text.split("\n")[1:3] == ["  at stake: rows", "  repair:   twofold reset"]


def test_what_is_offered_is_exact() -> None:
    text = HOSTILE.replace("\x00", "")
    statements = InDoubt(xid=1, gid=text, age_s=1, global_id=None, branch=None).statements
    for offered in (
        *statements,
        sql_literal(text),
        sql_identifier(text, "t"),
        table_argument(text, text),
        shell_argument(text),
    ):
        assert printable(offered) == offered
    assert sql_literal("it's") == "'it''s'"
    assert sql_literal("a\nb\\'\u202e\U000e0001") == "E'a\\u000ab\\\\''\\u202e\\U000e0001'"
    assert sql_identifier("it", 'a"\\') == '"it"."a""\\"'
    assert sql_identifier('a\n"\\\U000e0001') == 'U&"a\\+00000a""\\\\\\+0e0001"'
    echoed = subprocess.run(["bash", "-c", f"printf %s {shell_argument(text)}"], capture_output=True, check=True)
    assert echoed.stdout.decode() == text


def test_no_command_prints_in_another_way() -> None:
    """`say` makes lines printable. JSON has its own escapes, and a line of progress has numbers."""
    folder = Path(cli.__file__).parent
    own = {"__init__.py", "output.py", "config.py", "demo.py", "stack.py", "version.py"}
    others = {file.name: file.read_text() for file in folder.glob("*.py") if file.name not in own}
    echoed = {call for text in others.values() for call in re.findall(r'click\.echo\((json\.dumps|f?"..)', text)}
    assert echoed == {"json.dumps", 'f"\\r', '"\\r'}


def test_a_job_offers_a_command_that_is_exact() -> None:
    """Its tables have the names of the data contract; a command needs PostgreSQL's."""
    text = HOSTILE.replace("\x00", "") + "$(touch /tmp/x); `a` & b"
    table = f"public.{avro_name(text)}"
    command = reload_command(table)
    assert printable(command) == command
    echoed = subprocess.run(
        ["bash", "-c", f'twofold() {{ printf %s "$3"; }}; {command}'], capture_output=True, check=True
    )
    assert split_table_name(echoed.stdout.decode()) == ("public", text)
    folder = Path(cli.__file__).parents[3] / "spark_jobs"
    others = [
        file for file in folder.rglob("*.py") if re.search(r"backfill start \{(?!table_argument)", file.read_text())
    ]
    assert others == []
