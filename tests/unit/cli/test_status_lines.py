"""What `status` prints beside the positions: why the connector is behind, and since when the mirror
does not run.
"""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from twofold.cli.status import Seen, _clock, _kafka_lines
from twofold.errors import Unreachable
from twofold.group.ledgers import Branch
from twofold.inspect.in_doubt import HeldBack, InDoubt
from twofold.inspect.status_report import LackingTable, Status
from twofold.row_path import SLOW
from twofold.watch.page_client import PageAnswer
from twofold_common.mirror_place import MirrorPlace
from twofold_common.positions import Lsn

STATUS = Status(
    name="bank", slot="bank", initialised=True, held_by_pid=12, two_phase="enabled", source_lsn=Lsn(9000),
    confirmed_lsn=Lsn(8000), applied_lsn=Lsn(8000), sequence=30, behind_bytes=1000, wal_status="reserved", in_doubt=(),
    backfilling=(),
    stale=(), lacking=(), waits_for=(),
)  # fmt: skip
NOON = time.mktime((2024, 3, 1, 12, 0, 0, 0, 0, -1))


def page(**said: object) -> PageAnswer:
    known = {
        "behind_bytes": 1000,
        "behind_s": 0.0,
        "cause": "",
        "cause_since": None,
        "mirror_gone_since": None,
        "slow": None,
    }
    return PageAnswer(**{**known, **said})  # type: ignore[arg-type]


def lines(seen: Seen) -> str:
    return "\n".join(_kafka_lines(seen))


def test_the_cause_stands_below_the_lag() -> None:
    seen = Seen(STATUS, page(behind_s=72.4, cause="Kafka does not answer", cause_since=NOON))
    assert "1,000 bytes of WAL behind, 72 s\nbehind      Kafka does not answer since 2024-03-01 12:00:00\n" in lines(
        seen
    )


def test_rows_that_are_slow_are_told_beside_the_lag() -> None:
    seen = Seen(STATUS, page(behind_s=72.4, slow=SLOW))
    assert f"72 s\nslow        {SLOW}\ntwo_phase" in lines(seen)
    assert f"\nslow        {SLOW}\n" in lines(replace(seen, kafka_error=Unreachable("away")))


def test_rows_that_a_person_had_skipped_are_named() -> None:
    once = LackingTable("public.a", "bank.public.a", ("0/4D",), "twofold backfill start public.a")
    often = replace(once, table="public.b", lacks=tuple(f"0/{n}" for n in range(12)))
    said = lines(Seen(replace(STATUS, lacking=(once, often))))
    assert (
        "\nLACKS       public.a: the row at 0/4D, which a person had skipped; once every row can be published, run: "
        in said
    )
    assert "\nLACKS       public.b: 12 rows, at 0/0, 0/1, " in said
    assert "0/9 and 2 more, which a person had skipped; " in said


def test_a_connector_that_keeps_up_has_no_cause() -> None:
    assert "\nbehind  " not in lines(Seen(STATUS, page()))
    assert "at most 1,000 bytes of WAL behind\n" in lines(Seen(STATUS))


def test_the_cause_is_told_while_kafka_is_away_from_here_too() -> None:
    seen = Seen(
        STATUS, page(cause="Kafka has not answered a commit", cause_since=NOON), kafka_error=Unreachable("away")
    )
    assert lines(seen).splitlines()[:2] == [
        "in Kafka    not known: away",
        "behind      Kafka has not answered a commit since 2024-03-01 12:00:00",
    ]


@pytest.mark.parametrize(
    ("told_s_ago", "ended", "said_by_page", "words"),
    [
        (5, False, None, "up to date"),
        (5, True, None, "not running since {told}"),
        (3600, False, None, "not running since {told}"),
        (3600, False, {}, "up to date"),  # the page has heard it a moment ago, by its own clock
        (5, False, {"mirror_gone_since": NOON}, "not running since 2024-03-01 12:00:00"),
    ],
)
def test_a_mirror_that_has_ended(
    told_s_ago: float, ended: bool, said_by_page: dict[str, float] | None, words: str
) -> None:
    told = time.time() - told_s_ago
    seen = Seen(
        STATUS,
        None if said_by_page is None else page(**said_by_page),
        mirror=MirrorPlace(30, Lsn(8000), 0, told, ended=ended),
    )
    (line,) = [line for line in _kafka_lines(seen) if line.startswith("mirror")]
    assert line.endswith(words.format(told=_clock(told)))


def test_a_mirror_that_tells_only_of_its_cuts_is_not_judged() -> None:
    assert "not running" not in lines(Seen(STATUS, mirror=MirrorPlace(3, Lsn(8), 0)))


@pytest.mark.parametrize(
    ("stream_id", "words"),
    [("ours", "up to date"), ("", "up to date"), ("former", "reads topics that were made again since")],
)
def test_a_mirror_of_former_topics_is_not_up_to_date(stream_id: str, words: str) -> None:
    place = MirrorPlace(5000, Lsn(9000), 0, stream_id=stream_id)
    (line,) = [each for each in _kafka_lines(Seen(replace(STATUS, stream_id="ours"), mirror=place)) if "mirror" in each]
    assert line.endswith(f"commit record 5000, {words}")


def test_a_branch_in_doubt_names_who_waits_for_it_and_what_ends_it() -> None:
    east = HeldBack("bank_east", 40, 4, NOON)
    branch = InDoubt(
        xid=7, gid="g", owner="me", database="west", age_s=60, too_long=False, wal_bytes=1, in_kafka="parked", rows=4,
        global_id="1:g", branch="b", others=(Branch("bank_east", "g2", "1:g", "committed"),), held_back=(east,),
    )  # fmt: skip
    assert (
        "    HOLDS BACK 4 commit records of bank_east from 40 on, committed at 2024-03-01 12:00:00;"
        " to end it, in database west: COMMIT PREPARED 'g';"
    ) in lines(Seen(replace(STATUS, in_doubt=(branch,))))
