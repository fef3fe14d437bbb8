"""The pictures of docs/inside are those of their text sources, and every code name in them and on
the pages is in the tree.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import diagrams

ROOT = Path(__file__).parents[3]
INSIDE = ROOT / "docs/inside"
DISTRIBUTIONS = {
    "twofold": "connector",
    "twofold_avro": "avro",
    "twofold_common": "common",
    "twofold_reader": "reader",
    "twofold_spark": "spark_jobs",
}
CODE_NAME = re.compile(r"`((?:twofold|twofold_avro|twofold_common|twofold_reader|twofold_spark)(?:\.\w+)+)`")
PROPERTIES = {
    *("twofold.cuts", "twofold.cuts.history", "twofold.key", "twofold.offsets", "twofold.sequence"),
    *("twofold.comments", "twofold.ddl"),
}
"""Of a mirror's tables and of a schema, the table of its cuts, and a message's prefix: no code."""


SOURCES = list(diagrams.sources())
WALKS = [source for source in SOURCES if source.suffix == ".walk"]


def is_in_the_tree(name: str) -> bool:
    """Whether a dotted name is a package, a module, or what a module defines, without importing
    it.
    """
    distribution, *parts = name.split(".")
    place = ROOT / DISTRIBUTIONS[distribution] / distribution
    while parts and (place / parts[0]).is_dir():
        place = place / parts.pop(0)
    file = place / "__init__.py"
    if parts and (place / f"{parts[0]}.py").exists():
        file = place / f"{parts.pop(0)}.py"
    body: list[ast.stmt] = ast.parse(file.read_text()).body
    for part in parts:
        found = [node for node in body if part in _defined(node)]
        if not found:
            return False
        body = getattr(found[-1], "body", [])
    return True


def _defined(node: ast.stmt) -> set[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.Assign(targets=targets):
            return {each.id for each in targets if isinstance(each, ast.Name)}
        case ast.AnnAssign(target=ast.Name(id=name)):
            return {name}
        case _:
            return set()


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_a_picture_is_that_of_its_source(source: Path) -> None:
    assert source.with_suffix(".svg").read_text() == diagrams.draw(source), "run: make diagrams"


@pytest.mark.parametrize("source", WALKS, ids=lambda source: source.stem)
def test_a_walk_has_at_most_a_dozen_steps_that_are_in_the_tree(source: Path) -> None:
    walk = diagrams.Walk.parse(source.read_text())
    assert 2 < len(walk.steps) <= 12
    assert len({step.code for step in walk.steps}) == len(walk.steps), "a walk names each function once"
    assert [step.code for step in walk.steps if not is_in_the_tree(step.code)] == []


@pytest.mark.parametrize("page", sorted(INSIDE.glob("*.md")), ids=lambda page: page.stem)
def test_the_code_names_of_a_page_are_in_the_tree(page: Path) -> None:
    names = set(CODE_NAME.findall(page.read_text()))
    assert [name for name in sorted(names - PROPERTIES) if not is_in_the_tree(name)] == []


@pytest.mark.parametrize(
    ("name", "there"),
    [
        ("twofold.bridge.step.step", True),
        ("twofold.bridge", True),
        ("twofold.run.run.Run._read", True),
        ("twofold.bridge.step.leap", False),
        ("twofold.bridge.steps.step", False),
        ("twofold.run.run.Run.walk", False),
    ],
)
def test_a_name_that_is_not_there_is_seen(name: str, there: bool) -> None:
    assert is_in_the_tree(name) is there
