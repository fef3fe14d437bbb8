"""Warns of a prepared transaction that is in doubt for longer than `prepared.doubt_warning`.

The warning names the transaction, what it holds up, and the statements that would end it. Nothing
is ever run here. It comes once, then again each time the age has doubled; a restart begins again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from twofold.gids import describe
from twofold.stream.waiting_rows import PreparedRows
from twofold_common.positions import Lsn, PreparedIdentity
from twofold_common.printable import sql_literal

_log = logging.getLogger(__name__)

LOOK_S = 1.0


class InDoubtWarnings:
    """Warns for one run; used by the thread that reads. Asks no server."""

    def __init__(self, database: str, threshold_s: float) -> None:
        self._database = database
        self._threshold_s = threshold_s
        self._look_at_s = 0.0
        self._said_at_age_s: dict[PreparedIdentity, float] = {}

    def warn_if_due(self, prepared: Iterable[PreparedRows], read_lsn: Lsn, now_s: float) -> None:
        """Warn of transactions that are due.

        Called every turn, it works once a second; `now_s` is the time of day.
        """
        if now_s < self._look_at_s:
            return
        self._look_at_s = now_s + LOOK_S
        said, self._said_at_age_s = self._said_at_age_s, {}
        for each in prepared:
            age_s = now_s - each.prepared_at_us / 1e6
            said_at_s = said.get(each.identity, 0.0)
            if age_s >= max(self._threshold_s, 2 * said_at_s):
                _log.warning("%s", self._message(each, age_s, read_lsn))
                said_at_s = age_s
            self._said_at_age_s[each.identity] = said_at_s

    def _message(self, prepared: PreparedRows, age_s: float, read_lsn: Lsn) -> str:
        gid = prepared.identity.gid
        ended_by = "twofold prepared list says how" if prepared.parsed.global_id else " or ".join(statements(gid))
        return (
            f"in doubt too long: {describe(gid)} (xid {prepared.identity.xid}, database {self._database}) is prepared for {age_s:.0f} s (prepared.doubt_warning:"
            f" {self._threshold_s:g} s), holds at least {max(0, read_lsn - prepared.prepare_lsn)} bytes of WAL, {prepared.rows.records} rows in {', '.join(prepared.topics) or 'no topic'};"
            f" twofold status names its owner, who ends it: {ended_by}"
        )


def statements(gid: str) -> tuple[str, str]:
    """Return the statements that a person could run in the transaction's database.

    Twofold never runs them.
    """
    literal = sql_literal(gid)
    return f"COMMIT PREPARED {literal};", f"ROLLBACK PREPARED {literal};"
