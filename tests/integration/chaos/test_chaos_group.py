"""The short form of the group's chaos: two databases, a coordinator that is killed, and faults. No
global cut shows a transfer in part, where readers of each source alone see many so.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from chaos.ground import Servers
from chaos.group.trial import GroupTrial
from chaos.lanes import GROUP_KINDS

SEED = 1
ROUND_S = 20.0
KINDS_HERE = frozenset(
    kind for kind in GROUP_KINDS if not kind.startswith(("spark", "registry", "net")) and kind not in {"postgres-promote", "broker-stop"}
)  # fmt: skip
"""The others are for the long form: they take seconds to come back from."""

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


def test_no_global_cut_is_torn_under_faults(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    with ExitStack() as ending:
        servers = Servers(open_folder, ending, databases=2, brokers=1)
        result = GroupTrial(SEED, ROUND_S, KINDS_HERE, servers, open_folder / "round", None, print).run()
    assert result.violations == 0
    assert result.cuts >= 2
    assert result.transactions > 30
    assert result.torn_without > 0, "the load never left a transfer half visible: the total says nothing"
    assert {"connector", "coordinator"} <= {kind.partition("-")[0] for kind in result.faults}
