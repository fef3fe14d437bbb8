"""Hundreds of small batches with maintenance: what a batch costs, and what the tables keep, no
longer grows.

`-s` prints the figures of docs/inside/measurements/2026-11-mirror.md.
"""

from __future__ import annotations

import json
import re
import statistics
from dataclasses import dataclass
from pathlib import Path

import pytest

from fixtures.spark import Lake
from helpers.spark import process as spark_process
from helpers.spark.writer import Writer, table

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
NAMES = ("accounts", "vault")
ROWS = 20
MARKS = (50, 250, 500)
MEASURED = 40
"""The time of a batch at a mark is the median of so many before it."""
KEPT_S = 45
"""A reader has so long. In an hour there would be as many versions as batches."""
MAINTAIN_EVERY = 20
_SETTINGS = (
    *("--trigger", "continuous"),
    *("--maintain-every", str(MAINTAIN_EVERY), "--keep-cuts", str(KEPT_S / 3600)),
)


@dataclass(frozen=True)
class Figures:
    """At one mark; files, versions and bytes are those of the largest table."""

    batch_s: float
    files: int
    versions: int
    metadata_bytes: int

    @property
    def due(self) -> float:
        """How many versions a table may have: quicker batches make more of them in the time that
        they are kept.
        """
        return KEPT_S / self.batch_s + MAINTAIN_EVERY

    def __str__(self) -> str:
        return f"{self.batch_s:.2f} s a batch, {self.files} files, {self.versions} versions, {self.metadata_bytes} bytes of metadata"


@pytest.mark.parametrize("kept", ["iceberg", "beside"], indirect=True)
def test_the_500th_small_batch_costs_what_the_250th_does(kept: Lake) -> None:
    writer, found, times = kept.writer, dict[int, Figures](), list[float]()
    for name in NAMES:
        writer.table(table(name, {"id": "int8", "balance": "int8"}))
    commit(writer, 0)
    with spark_process.running(kept, *_SETTINGS, "--write-mode", kept.write_mode) as process:
        for line in spark_process.lines(process):
            if not (said := re.match(r"mirror: .* tables, ([0-9.]+) s, ", line)):
                continue
            times.append(float(said[1]))
            if (batches := len(times)) in MARKS:
                found[batches] = measure(kept.warehouse, times[-MEASURED:])
                print(f"{kept.write_mode}, {batches} batches: {found[batches]}", flush=True)
            if batches == MARKS[-1]:
                break
            commit(writer, batches)
    _, middle, last = (found[mark] for mark in MARKS)
    growth = 1.3 * max(1.0, last.due / middle.due)
    assert growth < 1.8, "the machine became so much quicker that these figures say nothing"
    assert last.files <= growth * middle.files
    assert last.versions <= growth * middle.versions
    assert last.metadata_bytes <= growth * middle.metadata_bytes
    assert last.batch_s <= 1.5 * middle.batch_s
    kept.assert_equal()


def commit(writer: Writer, number: int) -> None:
    """A transaction in both tables."""
    with writer.commit() as tx:
        for name in NAMES:
            tx.upsert(name, {"id": number % ROWS, "balance": number})


def measure(warehouse: Path, times: list[float]) -> Figures:
    folders = [warehouse / "public" / name for name in NAMES] + [warehouse / "twofold" / "cuts"]
    newest = [max(folder.glob("metadata/*.metadata.json"), key=lambda each: each.stat().st_mtime) for folder in folders]
    return Figures(
        batch_s=statistics.median(times),
        files=max(sum(1 for each in folder.rglob("*") if each.is_file()) for folder in folders),
        versions=max(len(json.loads(each.read_text())["snapshots"]) for each in newest),
        metadata_bytes=max(each.stat().st_size for each in newest),
    )
