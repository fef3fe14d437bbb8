"""The checker of a group's mirror, a program of its own. It knows nothing of the rule by which the
product chooses a cut.

    python -m chaos.group.checker --warehouse FOLDER --prefix P ... --bootstrap ... --registry URL
                                  --source FILE --jars CLASSPATH [--apart]

While stdin is open it reads as a user does, by `read_global_cut`, which is all that it imports of
the product. When stdin is closed, `--source` holds the databases' tables as they are in the end.
The last global cut must become equal to them. Then every global cut that was ever published is read
by plain SQL. In each the total over all databases is the same, and every transfer has all its
branches or none.

`torn_without` counts how often that would not hold without a global cut: at each commit record of
any source, each source shown as far as its own topics went.

With `--apart` the warehouse has a mirror of each source alone, and what is read is the last cut of
each. `wrong` counts the reads in which the total is another, or a transfer is there in part.

The last line is JSON; exit status 1: there are violations.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from chaos.group.bank import ACCOUNTS, BALANCE
from chaos.group.mirrored import CATALOG, GlobalCut, Mirrored, open_session
from chaos.group.topics import Spans
from chaos.violation import Violation
from twofold_spark import TwofoldError, read_global_cut

LOOK_EVERY_S: Final = 3.0
CAUGHT_UP_S: Final = 300.0
"""So long after the last fault the mirror may take to show all that was committed."""


class Checker:
    def __init__(self, spark: SparkSession, prefixes: list[str]) -> None:
        self._spark = spark
        self._mirrored = Mirrored(spark, prefixes)
        self._prefixes = prefixes
        self._total = len(prefixes) * ACCOUNTS * BALANCE
        self.violations: list[Violation] = []
        self.looks = 0
        self.wrong = 0
        self.checked = 0

    def look(self) -> None:
        """As a user does, while the mirror runs: all accounts and parts of the last global cut."""
        try:
            cut = read_global_cut(self._spark, catalog=CATALOG)
            tables = {table: [cut[prefix][f"public.{table}"] for prefix in cut] for table in ("account", "part")}
        except (TwofoldError, KeyError):
            # None is published yet, it is being loaded, or a table has no row yet.
            return
        self._check(f"read_global_cut {cut.cut}", tables["account"], tables["part"])
        self.looks += 1

    def look_apart(self) -> None:
        """As one does who has a mirror of each source alone: the last cut of each."""
        cut = self._mirrored.last_of_each()
        if cut.complete:
            before = len(self.violations)
            self._check("the last cuts", self._mirrored.tables(cut, "account"), self._mirrored.tables(cut, "part"))
            self.wrong += len(self.violations) > before
            self.looks += 1

    def wait_for(self, source: dict[str, Any]) -> None:
        """Until the last global cut is what the databases hold."""
        begun = time.monotonic()
        wanted = {table: {p: sorted(map(tuple, rows[table])) for p, rows in source.items()} for table in ("account", "part")}  # fmt: skip
        while True:
            found = self._mirrored.rows_of_last()
            if found == wanted:
                return
            if time.monotonic() > begun + CAUGHT_UP_S:
                self.violations += self._differences(wanted, found)
                return
            time.sleep(1)

    def check_all(self) -> None:
        """Every global cut of the table. One with a table that is being loaded is left out."""
        before: GlobalCut | None = None
        for cut in self._mirrored.cuts():
            if before is not None and not cut.follows(before):
                self.violations.append(Violation("order", f"global cut {cut} comes after {before}"))
            before = cut
            if cut.missing:
                self.violations.append(Violation("cut", f"global cut {cut} names cuts that {cut.missing} do not have"))
            elif cut.complete:
                self._check(
                    f"global cut {cut}", self._mirrored.tables(cut, "account"), self._mirrored.tables(cut, "part")
                )
                self.checked += 1

    def _check(self, what: str, accounts: list[DataFrame], parts: list[DataFrame]) -> None:
        """Two questions, of all databases at once."""
        total = _union(accounts).groupBy().sum("balance").collect()[0][0]
        if total != self._total:
            self.violations.append(Violation("total", f"{what}: {total}, not {self._total}"))
        by_transfer = _union(parts).groupBy("transfer").agg({"*": "count", "branches": "max", "amount": "sum"})
        torn = by_transfer.where("`count(1)` <> `max(branches)` OR `sum(amount)` <> 0").collect()
        if torn:
            some = [(row["transfer"], row["count(1)"], row["max(branches)"]) for row in torn[:5]]
            self.violations.append(Violation("torn", f"{what}: of {len(torn)} transfers a part is visible: {some}"))

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


def _union(tables: list[DataFrame]) -> DataFrame:
    first, *others = tables
    for other in others:
        first = first.unionByName(other)
    return first


def main() -> int:
    options = _options()
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    folders = {prefix: options.warehouse / prefix / ("lake" if options.apart else "") for prefix in options.prefix}
    spark = open_session(options.warehouse, folders, options.jars)
    checker = Checker(spark, options.prefix)
    over = threading.Event()
    threading.Thread(target=_wait_for_end, args=(over,), daemon=True).start()
    look = checker.look_apart if options.apart else checker.look
    while not over.wait(LOOK_EVERY_S):
        look()
    if options.apart:
        print(json.dumps({"looks": checker.looks, "wrong": checker.wrong}))
        return 0
    source = json.loads(options.source.read_text())
    checker.wait_for(source)
    checker.check_all()
    spans = Spans.read(options.bootstrap, options.registry, options.prefix)
    spark.stop()
    for violation in checker.violations[:20]:
        print(f"  !!! {violation}")
    print(
        json.dumps(
            {
                "transactions": len({row[0] for tables in source.values() for row in tables["part"]}),
                "cuts": checker.checked,
                "looks": checker.looks,
                "torn_without": len(spans.torn_moments()),
                "violations": len(checker.violations),
                "kinds": sorted({violation.kind for violation in checker.violations}),
            }
        )
    )
    return 1 if checker.violations else 0


def _wait_for_end(over: threading.Event) -> None:
    sys.stdin.read()
    over.set()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m chaos.group.checker")
    for name in ("bootstrap", "registry", "jars"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--prefix", action="append", required=True)
    parser.add_argument("--apart", action="store_true")
    for name in ("warehouse", "source"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
