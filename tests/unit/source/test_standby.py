"""What a standby as the source is refused for, as far as no server is needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest

from twofold.config import Config
from twofold.conninfo import Conninfo, password_of, primary_of
from twofold.errors import SetupError
from twofold.source import standby
from twofold.source.connection import PlainConnection
from twofold.source.diagnosis import conflict_reason, lost_slot
from twofold.source.standby import SourceUse, Stops, require_for_run

WITH_PRIMARY = Conninfo("host=replica", None, Conninfo("host=db", None))


@dataclass(frozen=True)
class Server:
    """As much of a connection as the checks before a run use."""

    in_recovery: bool = True
    version: int = 180006
    wal_level: tuple[str, str | None] = ("logical", None)

    @property
    def info(self) -> Any:
        return SimpleNamespace(server_version=self.version, user="twofold")

    def execute(self, query: str, _values: object = None) -> Any:
        answers: dict[str, tuple[object, ...]] = {
            "pg_is_in_recovery": (self.in_recovery,),
            "hot_standby_feedback": ("on", "a_slot"),
            "wal_level": self.wal_level,
            "pg_log_standby_snapshot": (True,),
        }
        row = next((answer for words, answer in answers.items() if words in query), None)
        return SimpleNamespace(fetchone=lambda: row, fetchall=list)


def require(conninfo: str, server: Server, use: SourceUse) -> None:
    require_for_run(conninfo, cast("PlainConnection", server), use)


@pytest.mark.parametrize(
    ("conninfo", "server", "use", "words"),
    [
        (WITH_PRIMARY, Server(version=150019), SourceUse(), "a standby decodes from 16 on"),
        (WITH_PRIMARY, Server(), SourceUse(synchronous=True), "prepared.synchronous = false"),
        ("host=replica", Server(), SourceUse(in_group=True), "set source.primary_dsn"),
    ],
)
def test_what_no_standby_can_give(conninfo: str, server: Server, use: SourceUse, words: str) -> None:
    with pytest.raises(SetupError, match=words):
        require(conninfo, server, use)


@pytest.mark.parametrize(
    ("server", "use"),
    [
        (Server(in_recovery=False), SourceUse(synchronous=True, in_group=True)),
        (Server(), SourceUse(in_group=True, loads=True, failover=True)),
    ],
)
def test_a_run_that_needs_nothing_else(server: Server, use: SourceUse) -> None:
    require(WITH_PRIMARY, server, use)


@pytest.mark.parametrize(
    ("conninfo", "own", "primary", "expected"),
    [
        (WITH_PRIMARY, ("logical", None), ("logical", None), []),
        (WITH_PRIMARY, ("logical", None), ("replica", None), [(Stops.INIT, "is not logical")]),
        (WITH_PRIMARY, ("replica", "replica"), ("replica", "replica"), [(Stops.INIT, "is not logical")]),
        (WITH_PRIMARY, ("replica", "logical"), ("replica", "logical"), [(Stops.NOTHING, "only while the primary has")]),
        (WITH_PRIMARY, ("replica", "logical"), ("logical", "logical"), []),
        ("host=replica", ("logical", None), None, []),
        ("host=replica", ("logical", "replica"), None, [(Stops.INIT, "is not logical")]),
        ("host=replica", ("replica", "logical"), None, []),
    ],
)
def test_the_level_that_counts_is_the_primarys(
    conninfo: str,
    own: tuple[str, str | None],
    primary: tuple[str, str | None] | None,
    expected: list[tuple[Stops, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @contextmanager
    def connected(_conninfo: str) -> Iterator[Server]:
        assert primary is not None
        yield Server(in_recovery=False, wal_level=primary)

    monkeypatch.setattr(standby, "connect_to_primary", connected)
    asked = cast("PlainConnection", Server(version=160000 if own[1] is None else 190000, wal_level=own))
    found = list(standby.examine(conninfo, asked, SourceUse(), slot_exists=False))
    assert [flaw.stops for flaw in found] == [stops for stops, _ in expected]
    assert all(
        flaw.check == "standby_wal_level" and words in flaw.what
        for flaw, (_, words) in zip(found, expected, strict=True)
    )


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("rows_removed", "ALTER SYSTEM SET hot_standby_feedback = on"),
        ("wal_level_insufficient", "ALTER SYSTEM SET wal_level = logical"),
        (conflict_reason(True), "ALTER SYSTEM SET hot_standby_feedback = on"),
        ("wal_removed", "raise max_slot_wal_keep_size"),
        (conflict_reason(None), "raise max_slot_wal_keep_size"),
    ],
)
def test_a_lost_slot_names_what_prevents_a_repetition(reason: str | None, words: str) -> None:
    refusal = lost_slot("bank", reason)
    assert words in refusal.repair
    assert "`twofold reset`, then `twofold init`" in refusal.repair


def test_the_primary_has_the_password_of_the_source(tmp_path: Any) -> None:
    (tmp_path / "secret").write_text("hunter2\n")
    source = {"dsn": "host=replica", "primary_dsn": "host=db", "password_file": str(tmp_path / "secret")}
    config = Config(
        name="bank",
        source=source,  # type: ignore[arg-type]
        kafka={"bootstrap": "k:9092"},  # type: ignore[arg-type]
        registry={"url": "http://r"},  # type: ignore[arg-type]
    )
    assert "host=replica" in config.conninfo
    primary = primary_of(config.conninfo)
    assert primary == "host=db"
    assert password_of(primary) == password_of(config.conninfo) == config.source.password
    assert primary_of("host=db") is None
