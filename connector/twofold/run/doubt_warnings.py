"""Warns of a prepared transaction that is in doubt for longer than `prepared.doubt_warning`.

The warning comes once, then again each time the age has doubled; a restart begins again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from twofold.inspect.in_doubt import InDoubt
from twofold.stream.source_transaction import SourceTransaction
from twofold_common.gids import describe
from twofold_common.positions import Lsn, PreparedIdentity

_log = logging.getLogger(__name__)

LOOK_S = 1.0


class InDoubtWarnings:
    """Warns for one run; used by the thread that reads. Asks no server."""

    def __init__(self, database: str, threshold_s: float) -> None:
        self._database = database
        self._threshold_s = threshold_s
        self._look_at_s = 0.0
        self._warned_at_age_s: dict[PreparedIdentity, float] = {}

    def warn_if_due(self, prepared: Iterable[SourceTransaction], read_lsn: Lsn, now_s: float) -> None:
        """Warn of transactions that are due.

        The method is called every turn, and works once a second; `now_s` is the time of day.
        """
        if now_s < self._look_at_s:
            return
        self._look_at_s = now_s + LOOK_S
        warned, self._warned_at_age_s = self._warned_at_age_s, {}
        for each in prepared:
            age_s = now_s - each.info.ts_us / 1e6
            warned_at_s = warned.get(each.identity, 0.0)
            if age_s >= max(self._threshold_s, 2 * warned_at_s):
                self._warn(self._describe(each, age_s, read_lsn))
                warned_at_s = age_s
            self._warned_at_age_s[each.identity] = warned_at_s

    def _describe(self, prepared: SourceTransaction, age_s: float, read_lsn: Lsn) -> InDoubt:
        return InDoubt(
            xid=prepared.identity.xid,
            gid=prepared.identity.gid,
            database=self._database,
            age_s=age_s,
            too_long=True,
            wal_bytes=max(0, read_lsn - prepared.prepare_lsn),
            rows=prepared.records,
            topics=prepared.topics,
            global_id=prepared.info.parsed.global_id,
            branch=prepared.info.parsed.branch,
        )

    def _warn(self, each: InDoubt) -> None:
        _log.warning(
            "in doubt too long: %s (xid %d) is prepared for %.0f s (prepared.doubt_warning: %g s): %s; twofold status"
            " names its owner; to end it: %s",
            describe(each.gid),
            each.xid,
            each.age_s,
            self._threshold_s,
            each.cost,
            each.ending,
        )
