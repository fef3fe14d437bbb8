"""A run of the sink in a process of its own, to be killed at a failpoint: `python sink_script.py
bootstrap registry prefix turns`.

Each turn commits two commit records: a group, and a prepared transaction, with another one opened
and aborted in between. The rows say their sequence number.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack

from integration.sink.sink_ground import Ground, commit, progress
from twofold.kafka.names import Names
from twofold.kafka.schema_registry import Registry, RegistrySettings, register_fixed
from twofold.kafka.watch import Watch


def values(sequence: int) -> list[str]:
    return [f"{sequence}.{n}" for n in range(4)]


def main(bootstrap: str, registry_url: str, prefix: str, turns: int) -> None:
    with ExitStack() as ending:
        registry, names = Registry(RegistrySettings(registry_url)), Names(prefix, "me")
        ground = Ground(bootstrap, names, registry, register_fixed(registry, names), Watch(), ending)
        fencing = ground.take_over()
        publisher, done = fencing.publisher, fencing.recovered.progress.sequence if fencing.recovered.progress else 0
        for sequence in range(done + 1, done + 2 * turns, 2):
            publisher.produce(ground.rows(*values(sequence)))
            publisher.commit_main(commit(sequence), progress(sequence))
            publisher.open(0, [ground.rows("never")])
            publisher.open(1, [ground.rows(*values(sequence + 1))])
            publisher.abort(0)
            publisher.commit_prepared(1, commit(sequence + 1, "prepared"), progress(sequence + 1), ledger={})
        print("through")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
