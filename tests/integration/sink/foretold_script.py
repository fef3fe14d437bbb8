"""A run of the sink in a process of its own, whose fifth forecast is wrong, to be killed at a
failpoint: `python foretold_script.py bootstrap registry prefix`.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack

from integration.sink.sink_ground import PARTITIONS, Ground, commit, progress
from twofold.kafka.names import Names
from twofold.kafka.publisher import TransactionRecords
from twofold.kafka.schema_registry import Registry, register_fixed
from twofold.kafka.watch import Watch


def main(bootstrap: str, registry_url: str, prefix: str) -> None:
    with ExitStack() as ending:
        registry, names = Registry(registry_url), Names(prefix, "me")
        ground = Ground(bootstrap, names, registry, register_fixed(registry, names), Watch(), ending)
        publisher = ground.take_over().publisher
        for sequence in range(1, 7):
            if sequence == 5:
                ground.settle()  # so that it is foretold
            publisher.produce(ground.rows(*(f"{sequence}.{k}" for k in range(2 * PARTITIONS))))
            if sequence == 5:
                publisher._forecast._next[ground.table, PARTITIONS - 1] += 1
            publisher.commit_main(TransactionRecords(commit(sequence), progress(sequence)))
        print("through")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3])
