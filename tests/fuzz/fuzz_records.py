"""Coverage-guided fuzzing of the readers of Kafka's records: commit records, progress, pins, the
ledger, frontiers, commands. Any bytes are a value, or are named.

    python tests/fuzz/fuzz_records.py SECONDS

The first byte of an input chooses the reader. The last line is that of `fuzz_decoder`.
"""

from __future__ import annotations

import random
import sys
from itertools import islice
from pathlib import Path

import atheris

with atheris.instrument_imports():
    import twofold_avro.records  # noqa: F401  (so that each branch of them is counted)

sys.path.insert(0, str(Path(__file__).parents[1]))
from fuzz.child import fuzz_in_child
from fuzz.hostile_records import IDS, READERS, VALUES, hostile, judge

_READERS = [*READERS.values()]


def check_input(data: bytes) -> None:
    if data:
        judge(_READERS[data[0] % len(_READERS)], data[1:])


def seeds() -> list[bytes]:
    whole = [value.to_bytes(IDS[type(value)]) for value in VALUES]
    messages = [*whole, b"start", *islice(hostile(random.Random(0)), 200)]
    return [bytes([reader]) + message for reader in range(len(_READERS)) for message in messages]


if __name__ == "__main__":
    sys.exit(fuzz_in_child(check_input, seeds(), int(sys.argv[1])))
