"""The short form of the chaos suite: one round with real faults, checked; then its own history with
violations planted into it, which are found.
"""

from __future__ import annotations

import pickle
import random
from contextlib import ExitStack
from pathlib import Path

import pytest

from chaos.checks import check
from chaos.draft import Draft
from chaos.ground import Servers
from chaos.lanes import KINDS
from chaos.planted import PLANTS, a_lost_row, a_split_one_of_a_late_commit, a_torn_transaction
from chaos.trial import Trial

SEED = 1
ROUND_S = 20.0
# What takes seconds to come back is for the long form; what is left befalls connectors, their
# network, PostgreSQL and brokers all the same.
KINDS_HERE = frozenset(
    kind for kind in KINDS if not kind.startswith(("spark", "registry")) and kind not in {"postgres-promote", "connector-outlasted", "broker-stop"}
)  # fmt: skip

PLANTED = (a_lost_row, a_split_one_of_a_late_commit, a_torn_transaction)
"""All of them are in tests/unit/chaos, on a short history."""

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


def test_nothing_is_lost_doubled_torn_or_out_of_order_under_faults(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "PYTHONPATH", str(Path(__file__).parents[2])
    )  # of the proxy and the checker, which are programs of their own
    with ExitStack() as ending:
        servers = Servers(open_folder, ending)
        result = Trial(SEED, ROUND_S, KINDS_HERE, servers, open_folder / "round", None, print).run()
    assert result.violations == 0
    assert result.ends_inside == 0, "no late end was taken for that of a later transaction"
    assert sum(result.faults.values()) >= 8
    assert len({kind.partition("-")[0] for kind in result.faults}) >= 4, result.faults
    assert result.commits > 15
    assert result.transactions > 200
    assert result.events > 60

    history = pickle.loads((open_folder / "round" / "history.pickle").read_bytes())
    for plant in PLANTED:
        draft = Draft(history, random.Random(SEED))
        plant(draft)
        found = {violation.kind for violation in check(draft.done())}
        assert found & PLANTS[plant], f"{plant.__name__} was not found: {found}"
