"""The architecture page's walks: it says which modules a reader opens, and how many."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
INSIDE = ROOT / "docs/inside"
PACKAGES = {
    "twofold": ROOT / "connector/twofold",
    "twofold_avro": ROOT / "avro/twofold_avro",
    "twofold_spark": ROOT / "spark_jobs/twofold_spark",
}
ROW = re.compile(r"\| ([a-z-]+): (\d+) \| (`twofold.*) \|")


def opened(cell: str) -> list[str]:
    """Return the full names of a cell: `package`: `module`, `module`; ..."""
    modules = []
    for part in cell.split("; "):
        package, names = part.split(": ")
        modules += [f"{package.strip('`')}.{name.strip('`')}" for name in names.split(", ")]
    return modules


WALKS = {
    name: (int(count), opened(cell)) for name, count, cell in ROW.findall((INSIDE / "architecture.md").read_text())
}


@pytest.mark.parametrize("walk", sorted(path.stem for path in (INSIDE / "diagrams").glob("*.walk")))
def test_the_page_names_each_module_of_a_walk_once_and_counts_them(walk: str) -> None:
    count, modules = WALKS[walk]
    assert count == len(modules) == len(set(modules))
    for module in modules:
        package, _, rest = module.partition(".")
        assert (PACKAGES[package] / f"{rest.replace('.', '/')}.py").exists(), module
    steps = re.findall(r"\| (twofold\w*\.\S+)", (INSIDE / f"diagrams/{walk}.walk").read_text())
    assert [step for step in steps if not any(step.startswith(f"{module}.") for module in modules)] == []
