"""Breaks of single lines of the product, each in a copy, under faults: the suite must find every
one.

    python -m chaos.mutants [--only NAME,...]

First the product as it is, under the faults of the chosen ones: nothing may be found. Then for
each: a copy of the product with the one line broken, a round of faults on it, and a verdict. The
last line is JSON; exit status 1: one of them was not found, or something that is not broken. The
results are in tests/records/chaos.md.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from chaos.__main__ import say
from chaos.ground import Servers
from chaos.group.trial import GroupTrial
from chaos.lanes import LANES
from chaos.trial import Trial
from twofold.stack import temporary_folder

ROOT = Path(__file__).parents[2]
ROUND_S = 30.0
DEATHS = frozenset(LANES["connector"]) - {"connector-outlasted"}
LATE = frozenset(LANES["late main"]) | frozenset(LANES["late pool"])
SPARK = DEATHS | {"spark-kill"}
GROUP = frozenset({"connector-kill", "coordinator-kill"})
GROUP_DATABASES = 2


@dataclass(frozen=True, slots=True)
class Mutant:
    """`old`, which is there once, becomes `new`."""

    name: str
    file: str
    old: str
    new: str
    faults: frozenset[str] = DEATHS


MUTANTS = (
    Mutant("the record at the boundary is skipped", "connector/twofold/bridge/state.py", "return start_lsn < self.resume_lsn", "return start_lsn <= self.resume_lsn"),
    Mutant("what is in Kafka is not skipped", "connector/twofold/bridge/state.py", "return start_lsn < self.resume_lsn", "return False"),
    Mutant("flush does not wait for prepares", "connector/twofold/bridge/batch.py", "return min(reachable, oldest_unresolved(state), oldest_uncommitted(state))", "return reachable"),
    Mutant("a sequence number for progress alone", "connector/twofold/bridge/batch.py", "state.sequence + (1 if state.batch.rows else 0)", "state.sequence + 1"),
    Mutant("the ledger is not told of outcomes", "connector/twofold/bridge/prepared.py", "    out.append(NoteInDoubt(identity, how))", "    pass"),
    Mutant("a rollback commits", "connector/twofold/kafka/publisher.py", "producer.abort()", "producer.commit()"),
    Mutant("no progress with a commit record", "connector/twofold/kafka/publisher.py", "producer.produce(topic, 0, others)", "producer.produce(topic, 0, [] if records.commit and topic == self._names.progress else others)"),
    Mutant("ranges begin at their end", "connector/twofold/kafka/deliveries.py", "Range(*place, w.first, w.last, w.count)", "Range(*place, w.last, w.last, w.count)"),
    Mutant("progress is read uncommitted", "connector/twofold/kafka/client.py", '"isolation.level": "read_committed"', '"isolation.level": "read_uncommitted"'),
    Mutant("recovery goes by the slot", "connector/twofold/run/assembly.py", "applied_lsn=Lsn(progress.applied_lsn),", "applied_lsn=slot.confirmed_flush,"),
    Mutant("recovery has read what it has not", "connector/twofold/run/assembly.py", "confirmed_lsn=slot.confirmed_flush,", "confirmed_lsn=Lsn(progress.applied_lsn),"),
    Mutant("chunks take the place of changes", "connector/twofold/lives/chunk_rule.py", "keys=frozenset().union(*(changes.keys for changes in unseen)),", "keys=frozenset(),"),
    Mutant("savepoints of streamed transactions stay", "connector/twofold/stream/streamed.py", "self._streamed[xid].take_back(subxid)", "pass"),
    Mutant("outbox events lose their headers", "connector/twofold/kafka/producer.py", 'self._enqueue_events if "headers" in records[0] else self._enqueue', "self._enqueue"),
    Mutant("outbox events have no partition of their key", "connector/twofold/outbox/event_topics.py", "0 if event.key is None else partition_of(event.key, partitions)", "batch.bytes % partitions"),
    Mutant("outbox messages do not wait for their transaction", "connector/twofold/stream/collector.py", "if message.transactional:", 'if message.transactional and not message.prefix.startswith("outbox:"):'),
    Mutant("outbox events of streamed savepoints stay", "connector/twofold/stream/streamed.py", "                if subxid not in self._gone:", "                if True:"),
    Mutant("the mirror takes a key's first row", "spark_jobs/twofold_spark/mirror/folding.py", 'f.max(f.when(f.col("readable"), f.struct("offset", "value"))).alias("last")', 'f.min(f.when(f.col("readable"), f.struct("offset", "value"))).alias("last")', faults=SPARK),
    Mutant("an end that may come twice is believed", "connector/twofold/kafka/late_ends.py", "if not retried and took_s <= bound_s:", "if True:", faults=LATE),
    Mutant("no frontier needs to speak of a branch", "common/twofold_common/global_cut.py", "return self.sequence if member == own else self.seen.get(member, 0)", "return 1 << 60", faults=GROUP),
    Mutant("a global transaction in doubt is shown", "common/twofold_common/global_cut.py", "self._hidden += each.frontier.in_doubt", "pass", faults=GROUP),
    # That a load waits for siblings is not here: an `init` waits for what is prepared in its
    # database, so that a round meets such a load once in dozens. The model has its own
    # (model/group_mutants.py), and tests/integration/spark/test_group_loads.py makes the scene.
    Mutant("what one member hides others show", "common/twofold_common/global_cut.py", "while self._hidden or self._early:", "while self._early:", faults=GROUP),
)  # fmt: skip


PATIENCE_S = 60.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos.mutants")
    parser.add_argument("--only", default="", help="names or beginnings of names, with commas")
    parser.add_argument("--rounds", type=int, default=3, help="seeds that are tried for one that is not found")
    options = parser.parse_args()
    chosen = [m for m in MUTANTS if m.name.startswith(tuple(options.only.split(",")))]
    verdicts: dict[str, list[str]] = {}
    with ExitStack() as ending:
        folder = temporary_folder()
        servers = Servers(folder, ending, databases=GROUP_DATABASES)
        for kinds in unbroken_rounds(chosen):
            if found := tried(1, servers, folder, ROOT, kinds):
                raise SystemExit(f"the product as it is: {found}")
        say("the product as it is: nothing is found")
        for mutant in chosen:
            product = break_copy(mutant, folder / "product")
            for seed in range(1, options.rounds + 1):
                verdicts[mutant.name] = tried(seed, servers, folder, product, mutant.faults)
                if verdicts[mutant.name]:
                    break
            say(f"mutant {mutant.name!r}: {verdicts[mutant.name] or 'NOT FOUND'}")
    shutil.rmtree(folder, ignore_errors=True)
    missed = [name for name, kinds in verdicts.items() if not kinds]
    print(json.dumps({"mutants": len(verdicts), "found": len(verdicts) - len(missed), "missed": missed}))
    return 1 if missed else 0


def unbroken_rounds(chosen: Sequence[Mutant]) -> list[frozenset[str]]:
    """The faults for the product as it is: those of a group, and of one source all in one round."""
    of_one = frozenset[str]().union(*(mutant.faults for mutant in chosen if mutant.faults != GROUP))
    in_group = any(mutant.faults == GROUP for mutant in chosen)
    return [*([of_one] if of_one else []), *([GROUP] if in_group else [])]


def tried(seed: int, servers: Servers, folder: Path, product: Path, kinds: frozenset[str]) -> list[str]:
    """The kinds of violations that were found."""
    room = folder / f"mutant-{seed}"
    shutil.rmtree(room, ignore_errors=True)
    try:
        if kinds == GROUP:
            return GroupTrial(seed, ROUND_S, kinds, servers, room, product, say).run().kinds
        return Trial(seed, ROUND_S, kinds, servers, room, product, say, patience_s=PATIENCE_S).run().kinds
    except RuntimeError as error:
        return [f"fails: {str(error).strip().splitlines()[-1][:100]}"]


def break_copy(mutant: Mutant, folder: Path) -> Path:
    """A copy with one line broken. Compiled modules come along: they are not what is broken."""
    shutil.rmtree(folder, ignore_errors=True)
    for part in ("connector", "avro", "spark_jobs", "common", "reader"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    file = folder / mutant.file
    text = file.read_text()
    if text.count(mutant.old) != 1:
        raise SystemExit(f"mutant {mutant.name!r}: {mutant.file} has {text.count(mutant.old)} times {mutant.old!r}")
    file.write_text(text.replace(mutant.old, mutant.new))
    return folder


if __name__ == "__main__":
    sys.exit(main())
