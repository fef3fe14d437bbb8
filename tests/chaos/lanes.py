"""The kinds of faults, in lanes side by side: how often each is drawn, how long it lasts, and how
long it is from one to the next of its lane.
"""

from __future__ import annotations

from typing import Final

_OF_MAIN: Final = {"late-commit": 14, "late-partitions": 2, "late-produce": 2, "late-init": 2}
_OF_POOL: Final = {"late-commit": 7, "late-abort": 10, "late-partitions": 2, "late-produce": 2, "late-init": 2}
LANES: Final = {
    "connector": {
        "connector-kill": 5, "connector-pause": 2, "connector-outlasted": 1, "connector-stop": 2, "failpoint": 8,
    },
    "servers": {
        "broker-kill": 3, "broker-stop": 1, "broker-pause": 3, "postgres-kill": 2, "postgres-stop": 1, "postgres-pause": 2, "postgres-promote": 1,
        "registry-kill": 1, "registry-stop": 1, "registry-pause": 1, "spark-kill": 2, "spark-stop": 1, "spark-pause": 1,
    },
    "surroundings": {
        "net-cut": 4, "net-freeze": 3, "net-halfopen": 2, "net-delay": 3, "disk-full": 2, "clock": 2, "lost-packets": 3,
    },
    "late main": _OF_MAIN, "late main.2": _OF_MAIN, "late pool": _OF_POOL, "late pool too": _OF_POOL,
}  # fmt: skip
"""Kinds of faults by lane, and how often each is drawn beside the others of its lane.
Late requests have four lanes, since of each producer one at a time is withheld."""

THE_MIRROR: Final = "the mirror"
GROUP_LANES: Final = {
    "a connector": {"connector-kill": 5, "connector-pause": 2, "connector-stop": 2},
    "a database": {
        "postgres-kill": 2, "postgres-stop": 1, "postgres-pause": 2, "postgres-promote": 1, "net-cut": 2, "net-freeze": 2, "net-halfopen": 1, "net-delay": 2,
    },
    "what all share": {
        "broker-kill": 3, "broker-stop": 1, "broker-pause": 3, "registry-kill": 1, "registry-stop": 1, "registry-pause": 1,
        "net-cut": 3, "net-freeze": 2, "net-halfopen": 2, "net-delay": 2,
    },
    THE_MIRROR: {"spark-kill": 2, "spark-stop": 1, "spark-pause": 1},
    "coordinator": {"coordinator-kill": 3, "coordinator-pause": 1},
}  # fmt: skip
"""Those of a source group, by how many members a fault stops. The other kinds need a second
connector of the same configuration, or a machine that they change for all.
"""

KINDS: Final = frozenset(kind for lane in LANES.values() for kind in lane)
GROUP_KINDS: Final = frozenset(kind for lane in GROUP_LANES.values() for kind in lane)

GAP_S: Final = {
    "connector": (0.3, 4.0),
    "servers": (0.5, 5.0),
    "surroundings": (0.2, 3.0),
    "late main": (0.1, 1.0),
    "late main.2": (0.1, 1.0),
    "late pool": (0.1, 1.0),
    "late pool too": (0.1, 1.0),
    "a connector": (0.3, 4.0),
    "a database": (0.5, 5.0),
    "what all share": (0.2, 3.0),
    THE_MIRROR: (70.0, 120.0),
    "coordinator": (0.5, 5.0),
}
"""From the end of a fault to the next of its lane."""

STORM_S, CALM_S = (8.0, 14.0), (14.0, 26.0)
"""The lanes of a group except the mirror's have their faults in storms that all share.

A global cut needs a frontier of every member. Where each lane had its own times, some member was
always away, and a round had four cuts.
"""
FIRST_STORM_S: Final = (1.0, 3.0)

NET_VICTIMS: Final = {"a database": ("postgres",), "what all share": ("broker", "broker", "registry")}
"""Whose network is meant in a lane; in the others it is anybody's."""
ANYBODY: Final = ("broker", "broker", "brokers", "postgres", "postgres", "registry")

SECONDS: Final = {
    "connector-outlasted": (9.0, 12.0), "connector-pause": (0.2, 5.0), "connector-stop": (0.0, 1.5), "connector-kill": (0.0, 1.5), "failpoint": (0.0, 1.5),
    "clock": (1.0, 5.0), "disk-full": (1.0, 5.0), "net-delay": (2.0, 6.0), "lost-packets": (2.0, 13.0), "postgres-promote": (0.0, 0.0),
}  # fmt: skip
"""How long a fault lasts; a process that was killed stays away that long. Others: `OTHERS_S`."""
OTHERS_S: Final = (0.2, 4.0)

FAILPOINTS: Final = (
    "after_read", "after_decode", "after_staging", "after_begin", "after_produce", "after_flush", "before_commit_record", "after_commit_record", "before_commit", "after_commit",
    "before_feedback", "after_feedback", "before_open", "after_open", "before_abort", "after_abort", "after_start_replication", "fence_main", "fence_prepared", "after_takeover",
    "after_progress_read", "after_checks",
)  # fmt: skip
