"""When a prepared transaction is said to be in doubt too long, and what is said."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from helpers.source.prepared import prepared_transaction
from twofold.kafka.row_batch import RowBatch
from twofold.run.doubt_warnings import InDoubtWarnings
from twofold.spool import Spool
from twofold.stream.source_transaction import SourceTransaction
from twofold_common.gids import ParsedGid
from twofold_common.positions import Lsn, PreparedIdentity


@pytest.fixture
def prepared(tmp_path: Path) -> SourceTransaction:
    batch, spool = RowBatch(), Spool(tmp_path, memory_max=1 << 10, disk_max=0)
    batch.lists("p.public.t", 1)[0].extend([{}] * 3)
    identity, topics = PreparedIdentity(7, "it's"), ("p.public.t",)
    return prepared_transaction(identity, spool, batch, prepare_lsn=1000, at_us=100_000_000, topics=topics)


def test_it_is_said_once_and_again_at_twice_the_age(
    prepared: SourceTransaction, caplog: pytest.LogCaptureFixture
) -> None:
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
    prepared: SourceTransaction, caplog: pytest.LogCaptureFixture
) -> None:
    doubts = InDoubtWarnings("bank", 600)
    with caplog.at_level(logging.WARNING):
        doubts.warn_if_due([prepared], Lsn(5000), 701)
        doubts.warn_if_due([], Lsn(5000), 703)
        doubts.warn_if_due([prepared], Lsn(5000), 705)
    assert len(caplog.messages) == 2


def test_of_a_branch_no_outcome_is_offered_that_could_tear_its_global_transaction(
    prepared: SourceTransaction, caplog: pytest.LogCaptureFixture
) -> None:
    doubts = InDoubtWarnings("bank", 600)
    prepared.info = prepared.info._replace(parsed=ParsedGid("7", "bank"))
    doubts.warn_if_due([prepared], Lsn(5000), 701)
    assert caplog.messages[0].endswith("to end it: see twofold prepared list")
