"""Check that code and docs keep the glossary: one word for one concept. Part of `make lint`.

    python deploy/vocabulary.py

Reads the table of docs/reference/glossary.md, the Python files of the distributions and of
the tests, and the pages. Reports each place, and ends with status 1 if there is one:

- a word or phrase that the table rules out, in code, messages and pages ("everywhere"), or as the
  whole name of a module, class or function ("names");
- a module or a class whose name is there twice in a distribution. Commands and doctor's modules are
  excepted: they are named for what they show or examine;
- a line of prose in a page that is longer than 100 characters. In code, ruff does that (W505).
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
GLOSSARY: Final = "docs/reference/glossary.md"
DISTRIBUTIONS: Final = (
    "connector/twofold",
    "avro/twofold_avro",
    "spark_jobs/twofold_spark",
    "common/twofold_common",
    "reader/twofold_reader",
)
NAMED_FOR_THEIR_SUBJECT: Final = ("/cli/", "/doctor/")
PROSE_MAX: Final = 100
ITS_OWN_TEST: Final = "tests/unit/docs/test_vocabulary.py"
"""Has the words that it looks for."""


@dataclass(frozen=True, slots=True)
class Ruled:
    """A word that is ruled out."""

    word: str
    instead: str
    names_only: bool

    def pattern(self) -> re.Pattern[str]:
        """Matches the word in text, and as part of a name."""
        return re.compile(rf"(?<![A-Za-z]){re.escape(self.word)}(?![A-Za-z])", re.IGNORECASE)


def ruled_out(page: str) -> list[Ruled]:
    """Read the table whose heading is `| not | but | where |`."""
    rules, rows = [], iter(page.splitlines())
    for row in rows:
        if re.fullmatch(r"\|\s*not\s*\|\s*but\s*\|\s*where\s*\|", row):
            break
    next(rows, None)
    for row in rows:
        if not row.startswith("|"):
            break
        words, instead, where = (cell.strip() for cell in row.strip("|").split("|"))
        rules += [Ruled(word.strip(" `"), instead, where == "names") for word in words.split(",")]
    return rules


def in_text(text: str, rules: list[Ruled]) -> Iterator[tuple[int, str]]:
    """Words that are ruled out everywhere, with their lines.

    A phrase may be broken over two lines.
    """
    flat = re.sub(r"\n[ \t]*(?:#[ \t]*)?", lambda gap: " " * len(gap[0]), text)
    for rule in rules:
        if rule.names_only:
            continue
        pattern = re.compile(rule.pattern().pattern.replace(r"\ ", " +"), re.IGNORECASE)
        for match in pattern.finditer(flat):
            yield text.count("\n", 0, match.start()) + 1, f"{rule.word!r} is ruled out: {rule.instead}"


def in_names(tree: ast.Module, rules: list[Ruled]) -> Iterator[tuple[int, str]]:
    """Classes and functions whose whole name is ruled out."""
    instead = {rule.word.lower(): rule.instead for rule in rules if rule.names_only}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            word = node.name.strip("_").lower()
            if word in instead:
                yield node.lineno, f"the name {node.name} is ruled out: {instead[word]}"


def twice(files: list[Path], package: str) -> Iterator[str]:
    """Names of modules and public classes that are there more than once in a distribution."""
    modules, classes = defaultdict(list), defaultdict(list)
    for file in files:
        path = file.as_posix()
        if not file.name.startswith("__") and not any(folder in path for folder in NAMED_FOR_THEIR_SUBJECT):
            modules[file.stem].append(path)
        for node in ast.parse((ROOT / file).read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name].append(path)
    for kind, names in (("module", modules), ("class", classes)):
        for name, paths in names.items():
            if len(paths) > 1:
                yield f"{package}: the {kind} name {name} is there {len(paths)} times: {', '.join(paths)}"


def long_prose(page: str) -> Iterator[tuple[int, str]]:
    """Lines of prose beyond the limit. Code, tables and what cannot be broken are none."""
    in_code = False
    for number, line in enumerate(page.splitlines(), 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        can_break = " " in line[:PROSE_MAX].strip("-* ")
        if not in_code and can_break and len(line) > PROSE_MAX and not line.startswith(("|", "    ", "<", "!")):
            yield number, f"{len(line)} characters; prose wraps at {PROSE_MAX}"


def findings() -> Iterator[str]:
    """Everything that breaks the glossary's rules, one line each."""
    rules = ruled_out((ROOT / GLOSSARY).read_text())
    if not rules:
        yield f"{GLOSSARY}: no table `| not | but | where |`"
    for package in DISTRIBUTIONS:
        code = [file.relative_to(ROOT) for file in sorted((ROOT / package).rglob("*.py"))]
        for file in code:
            text = (ROOT / file).read_text()
            places = [*in_text(text, rules), *in_names(ast.parse(text), rules)]
            yield from (f"{file}:{line}: {what}" for line, what in sorted(places))
            for rule in rules:
                if file.stem.lower() == rule.word.lower():
                    yield f"{file}: the module name {rule.word} is ruled out: {rule.instead}"
        yield from twice(code, package)
    for file in (file.relative_to(ROOT) for file in sorted((ROOT / "tests").rglob("*.py"))):
        if file.as_posix() != ITS_OWN_TEST:
            yield from (f"{file}:{line}: {what}" for line, what in in_text((ROOT / file).read_text(), rules))
    for file in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]):
        name = file.relative_to(ROOT).as_posix()
        if name != GLOSSARY:
            places = [*in_text(file.read_text(), rules), *long_prose(file.read_text())]
            yield from (f"{name}:{line}: {what}" for line, what in sorted(places))


def main() -> int:
    found = list(findings())
    print("\n".join(found) or "the glossary is kept")  # noqa: T201
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
