"""A run of the sink in a process of its own, to be killed at a failpoint: `python sink_script.py
order bootstrap registry prefix turns`.

Each turn commits two commit records: a batch, and a prepared transaction, with another one opened
and aborted in between. The rows say their sequence number. `alone`: one transaction ends after the
other. `beside`: each of the two ends beside another one's rows, which nobody has waited for.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack

from integration.sink.sink_ground import Ground, commit, progress
from twofold.kafka.names import Names
from twofold.kafka.publisher import Publisher, TransactionRecords
from twofold.kafka.schema_registry import Registry, register_fixed
from twofold.kafka.watch import Watch


def values(sequence: int) -> list[str]:
    return [f"{sequence}.{n}" for n in range(4)]


def turn_alone(ground: Ground, publisher: Publisher, sequence: int) -> None:
    publisher.produce(ground.rows(*values(sequence)))
    publisher.commit_main(TransactionRecords(commit(sequence), progress(sequence)))
    publisher.open(0, [ground.rows("never")])
    publisher.open(1, [ground.rows(*values(sequence + 1))])
    publisher.abort(0)
    publisher.commit_prepared(1, TransactionRecords(commit(sequence + 1, "prepared"), progress(sequence + 1)))


def turn_beside(ground: Ground, publisher: Publisher, sequence: int) -> None:
    publisher.open(1, [ground.rows_in(0, *values(sequence + 1))])
    publisher.produce(ground.rows_in(1, *values(sequence)))
    publisher.commit_main(TransactionRecords(commit(sequence), progress(sequence)))
    assert publisher._sent.are_of(publisher._pool[1])
    publisher.open(0, [ground.rows_in(2, "never")])
    publisher.commit_prepared(1, TransactionRecords(commit(sequence + 1, "prepared"), progress(sequence + 1)))
    assert publisher._sent.are_of(publisher._pool[0])
    publisher.abort(0)


def main(order: str, bootstrap: str, registry_url: str, prefix: str, turns: int) -> None:
    turn = {"alone": turn_alone, "beside": turn_beside}[order]
    with ExitStack() as ending:
        registry, names = Registry(registry_url), Names(prefix, "me")
        ground = Ground(bootstrap, names, registry, register_fixed(registry, names), Watch(), ending)
        fencing = ground.take_over()
        publisher, done = fencing.publisher, fencing.recovered.progress.sequence if fencing.recovered.progress else 0
        for sequence in range(done + 1, done + 2 * turns, 2):
            turn(ground, publisher, sequence)
        print("through")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5]))
