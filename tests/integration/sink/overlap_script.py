"""A run of the sink in a process of its own, to be killed while the rows of one Kafka transaction
are on their way and another one ends: `python overlap_script.py bootstrap registry prefix turns`.

Each turn commits a group and a prepared transaction, as `sink_script` does; each of the two ends
beside another one's rows, which nobody has waited for.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack

from integration.sink.sink_ground import Ground, commit, progress
from integration.sink.sink_script import values
from twofold.kafka.names import Names
from twofold.kafka.schema_registry import Registry, RegistrySettings, register_fixed
from twofold.kafka.watch import Watch


def main(bootstrap: str, registry_url: str, prefix: str, turns: int) -> None:
    with ExitStack() as ending:
        registry, names = Registry(RegistrySettings(registry_url)), Names(prefix, "me")
        ground = Ground(bootstrap, names, registry, register_fixed(registry, names), Watch(), ending)
        fencing = ground.take_over()
        publisher, done = fencing.publisher, fencing.recovered.progress.sequence if fencing.recovered.progress else 0
        for sequence in range(done + 1, done + 2 * turns, 2):
            publisher.open(1, [ground.rows_in(0, *values(sequence + 1))])
            publisher.produce(ground.rows_in(1, *values(sequence)))
            publisher.commit_main(commit(sequence), progress(sequence))
            assert publisher._sent.are_of(publisher._pool[1])
            publisher.open(0, [ground.rows_in(2, "never")])
            publisher.commit_prepared(1, commit(sequence + 1, "prepared"), progress(sequence + 1), ledger={})
            assert publisher._sent.are_of(publisher._pool[0])
            publisher.abort(0)
        print("through")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
