"""When a prepared transaction is said to be in doubt too long, and what is said."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from twofold.gids import ParsedGid
from twofold.run.doubt_warnings import InDoubtWarnings
from twofold.spool import Spool
from twofold.stream.waiting_rows import BatchRows, PreparedRows
from twofold_common.positions import Lsn, PreparedIdentity


@pytest.fixture
def prepared(tmp_path: Path) -> PreparedRows:
    rows = BatchRows(Spool(tmp_path, memory_max=0, disk_max=0).new())
    rows.records = 3
    return PreparedRows(PreparedIdentity(7, "it's"), Lsn(1000), 100_000_000, rows, ("p.public.t",), ParsedGid())


def test_it_is_said_once_and_again_at_twice_the_age(prepared: PreparedRows, caplog: pytest.LogCaptureFixture) -> None:
    doubts = InDoubtWarnings("bank", 600)
    with caplog.at_level(logging.WARNING):
        said = []
        for age_s in (599, 600, 601, 700, 1199, 1201, 2400, 2403):
            doubts.warn_if_due([prepared], Lsn(5000), 100 + age_s)
            said.append(len(caplog.messages))
    assert said == [0, 1, 1, 1, 1, 2, 2, 3]
    for words in (
        "database bank",
        "4000 bytes",
        "3 rows in p.public.t",
        "COMMIT PREPARED 'it''s';",
        "ROLLBACK PREPARED 'it''s';",
    ):
        assert words in caplog.messages[0]


def test_one_that_has_ended_is_forgotten_and_may_come_again(
    prepared: PreparedRows, caplog: pytest.LogCaptureFixture
) -> None:
    doubts = InDoubtWarnings("bank", 600)
    with caplog.at_level(logging.WARNING):
        doubts.warn_if_due([prepared], Lsn(5000), 701)
        doubts.warn_if_due([], Lsn(5000), 703)
        doubts.warn_if_due([prepared], Lsn(5000), 705)
    assert len(caplog.messages) == 2


def test_of_a_branch_no_outcome_is_offered_that_could_tear_its_global_transaction(
    prepared: PreparedRows, caplog: pytest.LogCaptureFixture
) -> None:
    doubts = InDoubtWarnings("bank", 600)
    doubts.warn_if_due([prepared._replace(parsed=ParsedGid("7", "bank"))], Lsn(5000), 701)
    assert caplog.messages[0].endswith("to end it: see twofold prepared list")
