"""The forms of global transaction identifiers, as those who make them do: psycopg's own Xid,
pgjdbc's recipe, and what the sources of Citus, PgDog, Npgsql and PostgreSQL print.
"""

from __future__ import annotations

import base64

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from psycopg._tpc import Xid

from twofold_common.gids import ParsedGid, describe, parse, parser

UUID = "0f8fad5b-d9cb-469f-a165-70867728950e"
ATOMIKOS, BITRONIX = 0x41544F4D, 0x42746E78


def pgjdbc(format_id: int, global_id: bytes, branch: bytes) -> str:
    """RecoveredXid.xidToString."""
    encoded = (base64.b64encode(part).decode() for part in (global_id, branch))
    return f"{format_id}_{'_'.join(encoded)}"


@pytest.mark.parametrize(
    ("gid", "expected"),
    [
        (pgjdbc(4660, b"order 7", b"ledger"), ParsedGid("4660:order 7", "ledger")),
        (pgjdbc(-1, b"order 7", b"stock"), ParsedGid("-1:order 7", "stock")),
        (pgjdbc(1, b"\x00\xff", b"\x01"), ParsedGid(r"1:\x00ff", r"\x01")),
        (pgjdbc(131077, bytes(range(64)), b"b" * 64), ParsedGid(rf"131077:\x{bytes(range(64)).hex()}", "b" * 64)),
        (pgjdbc(1, b"no branch", b""), ParsedGid("1:no branch", "")),
        (str(Xid.from_parts(42, "global", "branch")), ParsedGid("42:global", "branch")),
        (str(Xid.from_parts(0, "größe", "é")), ParsedGid("0:größe", "é")),
        ("citus_0_1234_7_2", ParsedGid("citus:0:1234:7", "2")),
        ("citus_12_1_18446744073709551615_0", ParsedGid("citus:12:1:18446744073709551615", "0")),
        ("pg_gid_16394_741", ParsedGid("pg_gid:741", "16394")),
        (
            pgjdbc(ATOMIKOS, b"127.0.1.1.tm170000000000000001", b"bank.postgres1"),
            ParsedGid("1096044365:127.0.1.1.tm170000000000000001", "bank.postgres1"),
        ),
        (
            pgjdbc(BITRONIX, b"srv" + bytes(12), b"srv" + bytes(11) + b"\1"),
            ParsedGid(rf"1114926712:\x737276{'00' * 12}", rf"\x737276{'00' * 11}01"),
        ),
        ("__pgdog_2pc_77_0", ParsedGid("pgdog:77", "0")),  # before July 2026
        ("__pgdog_2pc_a1b2c3d4_77_12", ParsedGid("pgdog:a1b2c3d4_77", "12")),
        (
            "__pgdog_2pc_eu_west_pgdog-3_18446744073709551615_1",
            ParsedGid("pgdog:eu_west_pgdog-3_18446744073709551615", "1"),
        ),
        (f"{UUID}/4242", ParsedGid(f"npgsql:{UUID}", "4242")),
    ],
)
def test_known_forms(gid: str, expected: ParsedGid) -> None:
    assert parse(gid) == expected


@pytest.mark.parametrize(
    "gid",
    [
        "",
        "test_prepared1",
        "1_2",
        "1_a_b",  # not base64: too short
        "1_YQ==_Yg==_Yw==",
        "x_YQ==_Yg==",
        "12345678901_YQ==_Yg==",
        "1_YQ==_Yg==\n",
        "\u0661_YQ==_Yg==",  # a digit, but not of ASCII
        "citus_0_1234_7",
        "citus_0_1234_7_2_1",
        "__pgdog_2pc_77",
        "__pgdog_2pc_a1b2c3d4_x_0",
        UUID,
        f"{UUID}/",
        f"{UUID[:-1]}/4242",
        "pg_gid_16394",
        "pg_gid_-1_741",
        str(Xid.from_string("opaque to psycopg too")),
    ],
)
def test_what_is_in_no_known_form_stays_opaque(gid: str) -> None:
    assert parse(gid) == ParsedGid()


@given(st.integers(-(2**31), 2**31 - 1), st.binary(max_size=64), st.binary(max_size=64), st.binary(max_size=64))
def test_branches_of_one_global_transaction_meet(format_id: int, global_id: bytes, one: bytes, other: bytes) -> None:
    first, second = parse(pgjdbc(format_id, global_id, one)), parse(pgjdbc(format_id, global_id, other))
    assert first.global_id == second.global_id is not None
    assert (first.branch == second.branch) == (one == other)


@given(st.binary(max_size=64), st.binary(max_size=64))
@example(b"\x00\xff", b"00ff")
@example(b"\x00\xff", rb"\x00ff")
def test_different_global_transactions_do_not_meet(one: bytes, other: bytes) -> None:
    first, second = parse(pgjdbc(1, one, b"b")), parse(pgjdbc(1, other, b"b"))
    assert (first.global_id == second.global_id) == (one == other)


@given(st.text(max_size=199))
def test_it_never_fails(gid: str) -> None:
    parse(gid)


def test_narayanas_ids_are_shown_as_its_log_prints_them() -> None:
    """ "tx_uid=0:ffff7f000001:854e:570710ee:133, node_name=1,
    branch_uid=0:ffff7f000001:854e:570710ee:134" of its documentation.
    """
    uid = bytes.fromhex("00000000000000000000ffff7f0000010000854e570710ee")
    gid = pgjdbc(131077, uid + b"\x00\x00\x01\x33" + b"1", uid + b"\x00\x00\x01\x34" + b"\x00" * 4)
    assert describe(gid) == (
        "tx_uid=0:ffff7f000001:854e:570710ee:133 node_name=1 branch_uid=0:ffff7f000001:854e:570710ee:134"
    )
    assert describe(pgjdbc(131077, b"too short", b"")) == "131077:too short"


@pytest.mark.parametrize(
    ("gid", "shown"),
    [
        (pgjdbc(4660, b"order 7", b"ledger"), "4660:order 7 branch ledger"),
        ("citus_0_1234_7_2", "citus:0:1234:7 branch 2"),
        ("opaque", "opaque"),
        (f"{'x' * 100}-1", f"{'x' * 30}…{'x' * 28}-1"),
    ],
)
def test_what_people_are_shown_keeps_its_end(gid: str, shown: str) -> None:
    assert describe(gid) == shown


OWN = (r"pay-(?P<global>\d+)-(?P<branch>\w+)", r"(?P<branch>\w*)@(?P<global>citus_.*)")


@pytest.mark.parametrize(
    ("gid", "expected"),
    [
        ("pay-7-ledger", ParsedGid("7", "ledger")),
        ("pay-7-stock", ParsedGid("7", "stock")),
        ("stock@citus_0", ParsedGid("citus_0", "stock")),
        ("@citus_0", ParsedGid()),  # an empty branch: as if it did not match
        ("pay-7-ledger!", ParsedGid()),  # a pattern matches all or nothing
        ("citus_0_1234_7_2", ParsedGid("citus:0:1234:7", "2")),
    ],
)
def test_patterns_of_ones_own_come_before_the_known_forms(gid: str, expected: ParsedGid) -> None:
    assert parser(OWN)(gid) == expected


def test_a_pattern_may_take_a_known_form() -> None:
    gid = "citus_0_1234_7_2"
    assert parser((r"citus_(?P<branch>\d+)_(?P<global>.*)",))(gid) == ParsedGid("1234_7_2", "0")
    assert parser(())(gid) == parse(gid)
