"""List every message that a user can see, from the code: `make messages`.

    python deploy/messages.py

One line each: file, line, kind, text; an expression in a text stands in braces. Kinds: `error`
(raised), `refusal`, `at stake`, `repair`, `log`, `finding` (doctor's and init's), `help`, `output`.
Reads the sources; runs nothing of them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
CODE: Final = ("connector", "avro", "spark_jobs", "common", "reader")
LOGS: Final = {"debug", "info", "warning", "error", "exception", "critical"}
OUTPUT: Final = {"echo", "print", "say", "secho"}
PARTS: Final = {"at_stake": "at stake", "repair": "repair", "help": "help", "description": "help", "epilog": "help"}


def text_of(node: ast.expr | None) -> str | None:
    """A string expression as it reads, with expressions in braces; None if it is no text."""
    match node:
        case ast.Constant(str(value)):
            return value
        case ast.JoinedStr(values):
            return "".join(text_of(value) or f"{{{ast.unparse(value.value)}}}" if isinstance(value, ast.FormattedValue) else text_of(value) or "" for value in values)  # fmt: skip
        case ast.BinOp(left, ast.Add(), right):
            return f"{text_of(left) or '{...}'}{text_of(right) or '{...}'}"
        case ast.IfExp(_, body, orelse):
            return f"{text_of(body) or '{...}'} | {text_of(orelse) or '{...}'}"
        case _:
            return None


def called(node: ast.Call) -> str:
    """The last name of what is called."""
    match node.func:
        case ast.Name(name):
            return name
        case ast.Attribute(_, name):
            return name
        case _:
            return ""


def kind_of(node: ast.Call, errors: set[str]) -> str | None:
    """Which kind of message a call makes of its texts; None: none."""
    name = called(node)
    if name in errors:
        return "refusal" if "Refused" in name else "error"
    if name in LOGS and isinstance(node.func, ast.Attribute):
        return "log"
    if name in OUTPUT:
        return "output"
    return "finding" if name in {"_finding", "must", "should", "note", "ReadinessFinding", "Rule", "Refuse"} else None


def messages(tree: ast.Module, errors: set[str]) -> Iterator[tuple[int, str, str]]:
    """Every message of a module: line, kind, text."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            decorated = " ".join(ast.unparse(decorator) for decorator in node.decorator_list)
            if ".command" in decorated or ".group" in decorated or "click." in decorated:
                yield node.lineno, "help", ast.get_docstring(node) or ""
        if not isinstance(node, ast.Call):
            continue
        kind = kind_of(node, errors)
        if kind is not None:
            for argument in node.args:
                if text := text_of(argument):
                    yield argument.lineno, kind, text
        for keyword in node.keywords:
            part = PARTS.get(keyword.arg or "")
            if part is not None and (text := text_of(keyword.value)):
                yield keyword.value.lineno, part, text


def error_classes(trees: dict[Path, ast.Module]) -> set[str]:
    """Names of the classes that derive from one of Twofold's errors."""
    bases = {"TwofoldError"}
    classes = [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    while True:
        more = {node.name for node in classes if any(ast.unparse(base) in bases for base in node.bases)} - bases
        if not more:
            return bases
        bases |= more


def main() -> None:
    files = (file for part in CODE for file in (ROOT / part).rglob("*.py") if "build" not in file.parts)
    trees = {file.relative_to(ROOT): ast.parse(file.read_text()) for file in files}
    errors = error_classes(trees)
    for file, tree in sorted(trees.items()):
        for line, kind, text in sorted(messages(tree, errors)):
            print(f"{file}:{line}\t{kind}\t{' '.join(text.split())}")  # noqa: T201


if __name__ == "__main__":
    main()
