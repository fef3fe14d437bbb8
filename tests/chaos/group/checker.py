"""The checker of a group's mirror, a program of its own. It knows nothing of the rule by which the
product chooses a cut.

    python -m chaos.group.checker --warehouse FOLDER --prefix P ... --bootstrap ... --registry URL
                                  --source FILE --jars CLASSPATH [--sink delta=FOLDER]

While stdin is open it reads as a user does, by `read_cut` or a snapshot of PostgreSQL. On
stdin come the times between which there were faults. When it is closed, `--source` holds the
databases' tables as they are in the end. The last global cut must become equal to them. Then every
global cut that was ever published is read by plain SQL, if the sink keeps older ones. In each the
total over all databases is the same, and every transfer has all its branches or none.

`torn_without` counts how often that would not hold without a global cut: at each commit record of
any source, each source shown as far as its own topics went.

The last line is JSON; exit status 1: there are violations. stderr says how far it is.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from chaos.group.bank import ACCOUNTS, BALANCE
from chaos.group.mirrored import InDelta, InIceberg, Mirrored, open_session
from chaos.group.shown import COLUMNS, GlobalCut, Shown, View
from chaos.group.snapshots import Snapshots
from chaos.group.topics import Spans
from chaos.violation import Violation

CAUGHT_UP_S: Final = 300.0
"""So long after the last fault the mirror may take to show all that was committed."""


class Checker:
    def __init__(self, view: View, prefixes: list[str]) -> None:
        self._view = view
        self._total = len(prefixes) * ACCOUNTS * BALANCE
        self.violations: list[Violation] = []
        self.looks = 0
        self.checked: set[int] = set()
        """The numbers of the global cuts whose tables were read."""

    def look(self) -> None:
        """As a user does, while the mirror runs: all accounts and parts of the last global cut."""
        self.looks += self._check(self._view.look())

    def wait_for(self, source: dict[str, Any]) -> None:
        """Until the last global cut is what the databases hold."""
        begun = time.monotonic()
        wanted = {table: {p: sorted(map(tuple, rows[table])) for p, rows in source.items()} for table in COLUMNS}
        while True:
            found = self._view.rows_of_last()
            self.look()
            if found == wanted:
                say(f"the last global cut is what the databases hold, after {time.monotonic() - begun:.0f} s")
                return
            if time.monotonic() > begun + CAUGHT_UP_S:
                self.violations += self._differences(wanted, found)
                return
            time.sleep(1)

    def check_all(self) -> list[GlobalCut]:
        """Every global cut of the table. A table that is being loaded in one member is left out."""
        cuts = self._view.cuts()
        say(f"{len(cuts)} global cuts, {len(self.checked)} of them were read meanwhile")
        for before, cut in pairwise(cuts):
            if not cut.follows(before):
                self.violations.append(Violation("order", f"global cut {cut} comes after {before}"))
        for cut in cuts:
            if any(map(cut.has, COLUMNS)) and self._check(self._view.show(cut)):
                say(f"read {cut}")
        return cuts

    def _check(self, shown: Shown | None) -> bool:
        """Whether there was something to check."""
        if shown is None:
            return False
        self.violations += shown.violations(self._total)
        self.checked.add(shown.number)
        return True

    @staticmethod
    def _differences(wanted: dict[str, Any], found: dict[str, Any]) -> list[Violation]:
        violations = []
        for table, prefix in ((t, p) for t in wanted for p in wanted[t]):
            there, due = (Counter(each.get(table, {}).get(prefix, ())) for each in (found, wanted))
            if there != due:
                violations.append(
                    Violation(
                        "final",
                        f"{table} of {prefix}: lacks {sum((due - there).values())}, such as {list(due - there)[:3]}; has too many {list(there - due)[:3]}",
                    )
                )
        return violations


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def main() -> int:
    options = _options()
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    said: list[str] = []
    over = threading.Event()
    threading.Thread(target=_wait_for_end, args=(said, over), daemon=True).start()
    view = _open(options)
    checker = Checker(view, options.prefix)
    while not over.wait(view.look_every_s):
        checker.look()
    begun, ended = json.loads(said[0])
    source = json.loads(options.source.read_text())
    checker.wait_for(source)
    cuts = checker.check_all()
    spans = Spans.read(options.bootstrap, options.registry, options.prefix)
    checker.violations += [Violation("unrecorded", f"{row}: no commit record has it") for row in spans.unrecorded]
    for violation in checker.violations[:20]:
        print(f"  !!! {violation}")
    print(
        json.dumps(
            {
                "transactions": len({row[0] for tables in source.values() for row in tables["part"]}),
                "published": len(cuts),
                "cuts": len(checker.checked),
                "under_faults": sum(cut.number in checker.checked and begun < cut.published_at < ended for cut in cuts),
                "looks": checker.looks,
                "torn_without": len(spans.torn_moments()),
                "violations": len(checker.violations),
                "kinds": sorted({violation.kind for violation in checker.violations}),
            }
        )
    )
    return 1 if checker.violations else 0


def _open(options: argparse.Namespace) -> View:
    name, _, address = options.sink.partition("=")
    if name == "jdbc":
        return Snapshots(address, options.prefix)
    folders = {prefix: options.warehouse / prefix for prefix in options.prefix}
    spark = open_session(options.warehouse, folders, options.jars, in_delta=name == "delta")
    return Mirrored(spark, options.prefix, InDelta(address) if name == "delta" else InIceberg())


def _wait_for_end(said: list[str], over: threading.Event) -> None:
    said.append(sys.stdin.read())
    over.set()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m chaos.group.checker")
    for name in ("bootstrap", "registry", "jars"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--prefix", action="append", required=True)
    parser.add_argument("--sink", default="iceberg")
    for name in ("warehouse", "source"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
