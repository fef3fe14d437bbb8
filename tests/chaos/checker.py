"""The checker, a program of its own: reads the topics read_committed, the journals and the source,
and says what is wrong. It imports nothing of the product.

    python -m chaos.checker --bootstrap ... --registry ... --prefix ... --journal FOLDER

`--journal` is the folder of the clients' journals and `source.json`, the source's tables at the
end. The last line is JSON; exit status 1: there are violations.
"""

from __future__ import annotations

import argparse
import json
import pickle
import sys
import time
from pathlib import Path

from chaos import journal
from chaos.checks import History, check
from chaos.ends import read_ends
from chaos.events import EVENT, is_event
from chaos.reading import avro, read_all
from helpers.reading import make_consumer, topics_of

KEPT_MAX = 1_000_000
"""Rows. Writing down an hour's takes more memory than reading it."""


def gather(bootstrap: str, registry: str, prefix: str, folder: Path) -> History:
    """All there is, once every partition can be read to where the commit records say that it
    goes.
    """
    decode = avro(registry)
    reader = make_consumer(bootstrap)
    try:
        names = topics_of(reader, prefix)
    finally:
        reader.close()
    commits = read_all(bootstrap, decode, [f"{prefix}.commits"])
    lasts = {(r["topic"], r["partition"]): r["last"] for c in commits for r in c.value["ranges"]}
    deadline = time.monotonic() + 60
    while True:
        records = read_all(
            bootstrap, decode, [n for n in names if ".public." in n or EVENT in n or n == f"{prefix}.messages"]
        )
        there = {(record.topic, record.partition): record.offset for record in records}
        if all(there.get(place, -1) >= last for place, last in lasts.items()) or time.monotonic() > deadline:
            break
    return History(
        prefix=prefix,
        journal=journal.read(folder),
        rows=[record for record in records if not is_event(record)],
        commits=commits,
        progress=read_all(bootstrap, decode, [f"{prefix}.progress"]),
        ledger=read_all(bootstrap, decode, [f"{prefix}.prepared"]),
        source=json.loads((folder / "source.json").read_text()),
        ends=read_ends(bootstrap, prefix),
        events=[record for record in records if is_event(record)],
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos.checker")
    for name in ("bootstrap", "registry", "prefix"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--keep", type=Path, help="write the history here, for a second look")
    options = parser.parse_args()
    history = gather(options.bootstrap, options.registry, options.prefix, options.journal)
    if options.keep and len(history.rows) < KEPT_MAX:
        options.keep.write_bytes(pickle.dumps(history))
    violations = check(history)
    for violation in violations[:20]:
        print(f"  !!! {violation}")
    print(
        json.dumps(
            {
                "transactions": len(history.source["marks"]),
                "records": len(history.rows),
                "events": len(history.events),
                "commits": len(history.commits),
                "violations": len(violations),
                "kinds": sorted({violation.kind for violation in violations}),
            }
        )
    )
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
