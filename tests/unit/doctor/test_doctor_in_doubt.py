"""What doctor offers for a prepared transaction: what `prepared list` offers, and never an outcome
that could tear a global transaction.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from twofold.doctor import postgres
from twofold.source import identity
from twofold.source.identity import PreparedTransaction

BRANCH = "1234_Z3RyaWQ=_YnF1YWw="


@pytest.mark.parametrize(
    ("gid", "has_slot", "offered"),
    [
        ("it's", True, ("COMMIT PREPARED 'it''s';", "ROLLBACK PREPARED 'it''s';")),
        ("a\nb", False, (r"COMMIT PREPARED E'a\u000ab';", r"ROLLBACK PREPARED E'a\u000ab';")),
        (BRANCH, True, ("twofold prepared list",)),
        (BRANCH, False, ()),
    ],
)
def test_what_ends_it(gid: str, *, has_slot: bool, offered: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    listed = (PreparedTransaction(7, gid, "me", "bank", prepared_at=0.0, age_s=700.0),)
    monkeypatch.setattr(identity, "prepared_transactions", lambda *_, **__: listed)
    prepared = SimpleNamespace(doubt_warning=600.0, gid_patterns=())
    config = SimpleNamespace(conninfo="", prepared=prepared)
    source = SimpleNamespace(config=config, slot=object() if has_slot else None, is_standby=False)
    (finding,) = postgres._in_doubt(cast("Any", source))
    assert finding.check == ("in_doubt" if has_slot else "init_waits")
    *statements, comment = finding.remedy
    assert tuple(statements) == offered
    assert comment.startswith("-- one outcome, in database bank, as its coordinator decides")
