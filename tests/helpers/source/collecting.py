"""A collector for messages that a test makes: nothing is in Kafka, in the ledger or parked."""

from __future__ import annotations

from typing import Any

from twofold.spool import Spool
from twofold.stream.collector import Collector


def make_collector(tables: Any, spool: Spool, **others: Any) -> Collector:
    """`others`: further arguments, or in place of these."""
    nothing = dict.fromkeys(("is_applied", "is_applied_upto", "knows", "parks"), lambda _: False)
    return Collector(**{"tables": tables, "spool": spool, "open_within_s": 0, "pool": 1, **nothing, **others})
