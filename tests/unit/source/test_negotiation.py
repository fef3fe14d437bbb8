"""What is asked of which server, and the pure readers beside it."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from twofold.errors import Unreachable
from twofold.source.connection import PlainConnection, address, connect
from twofold.source.identity import TimelineSwitch, parse_history
from twofold.source.session import SessionOptions, negotiate
from twofold_common.positions import Lsn
from twofold_common.table_names import quote_literal


def test_server_15_gets_what_it_knows() -> None:
    said = negotiate(SessionOptions(streaming="parallel"), 150018, "p")
    assert said == {
        "proto_version": "3",
        "publication_names": '"p"',
        "streaming": "on",
        "two_phase": "on",
        "binary": "on",
        "messages": "on",
    }


def test_server_18_gets_all() -> None:
    said = negotiate(SessionOptions(streaming="parallel"), 180006, 'q"r')
    assert said["proto_version"] == "4"
    assert said["streaming"] == "parallel"
    assert said["publication_names"] == '"q""r"'


def test_what_is_off_is_not_said() -> None:
    options = SessionOptions(two_phase=False, streaming="off", binary=False, messages=False)
    assert negotiate(options, 170000, "p") == {"proto_version": "4", "publication_names": '"p"'}


def test_a_history_file_is_read() -> None:
    content = "# made by hand\n1\t0/3000148\tno recovery target specified\n\n2\t1A/5000000\n"
    assert parse_history(content) == (
        TimelineSwitch(1, Lsn(0x3000148), "no recovery target specified"),
        TimelineSwitch(2, Lsn(0x1A_0500_0000), ""),
    )


def test_a_login_gives_what_the_environment_or_a_service_file_could_give(monkeypatch: pytest.MonkeyPatch) -> None:
    logins: list[dict[str, Any]] = []

    def refuse(conninfo: str, **_: Any) -> PlainConnection:
        logins.append(conninfo_to_dict(conninfo))
        raise psycopg.OperationalError("nobody is here")

    monkeypatch.setattr(PlainConnection, "connect", refuse)
    with pytest.raises(Unreachable, match="nobody is here"):
        connect("service=bank options='-c work_mem=1MB'")
    [login] = logins
    assert (login["load_balance_hosts"], login["client_encoding"]) == ("disable", "UTF8")
    assert login["options"].startswith("-c work_mem=1MB -c datestyle=ISO ")
    assert r" -c default_transaction_isolation=read\ committed " in login["options"]


def test_an_address_never_shows_the_password() -> None:
    for conninfo in ("postgresql://u:secret@h:5/d", "host=h port=5 dbname=d user=u password=secret"):
        assert address(conninfo) == "h:5/d"


def test_a_name_with_braces_is_sent_as_it_is() -> None:
    composed = sql.SQL("{} {}").format(sql.Identifier("n"), sql.SQL(quote_literal("we{ird}' {}")))
    assert composed.as_string(None) == """"n" 'we{ird}'' {}'"""
