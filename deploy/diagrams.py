"""`make diagrams`: draw the pictures of docs/inside from their text sources.

    python deploy/diagrams.py [FOLDER]

A `.walk` file lists the steps of one walk through the code, a `.csv` file the bars of a graph. Each
gets an SVG beside it, readable in light and dark. A test draws them again and compares, and looks
for each code name in the tree.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parents[1] / "docs/inside/diagrams"
_WIDTH: Final = 768
_STEP, _BOX, _TOP = 62, 46, 56
_STYLE: Final = """\
<style>
.sheet{fill:#fff}.ink{fill:#1f2328}.dim{fill:#57606a}.box{fill:#f6f8fa;stroke:#d0d7de}.line{stroke:#57606a;fill:none}
.back{stroke:#8250df;fill:none;stroke-dasharray:5 4}.said{fill:#8250df}.c0{fill:#8c959f}.c1{fill:#0969da}.c2{fill:#bf8700}.c3{fill:#cf222e}
.folders{fill:#ddf4ff;stroke:#54aeff}text{font:13px system-ui,sans-serif}.code{font:600 13px ui-monospace,monospace}.title{font:600 16px system-ui,sans-serif}
@media (prefers-color-scheme:dark){
.sheet{fill:#0d1117}.ink{fill:#e6edf3}.dim{fill:#9198a1}.box{fill:#151b23;stroke:#3d444d}.line{stroke:#9198a1}
.back{stroke:#ab7df8}.said{fill:#ab7df8}.c0{fill:#656c76}.c1{fill:#4493f8}.c2{fill:#d29922}.c3{fill:#f85149}
.folders{fill:#0c2d4d;stroke:#316dca}}
</style>
<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">\
<path d="M0 0L8 4L0 8z" class="dim"/></marker><marker id="answer" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" \
markerHeight="8" orient="auto"><path d="M0 0L8 4L0 8z" class="said"/></marker></defs>"""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a walk: in which folder, which code, what happens there."""

    folder: str
    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What comes back, from one step to an earlier one."""

    begin: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class Walk:
    """The contents of a `.walk` file."""

    title: str
    steps: tuple[Step, ...]
    answers: tuple[Answer, ...]

    @classmethod
    def parse(cls, text: str) -> Walk:
        """Lines `folder | code | text`, then `<- from to text`; the first line is `# title`."""
        title, *lines = [line for line in text.splitlines() if line.strip()]
        steps, answers = [], []
        for line in lines:
            if line.startswith("<-"):
                begin, end, what = line[2:].split(maxsplit=2)
                answers.append(Answer(int(begin), int(end), what))
            else:
                steps.append(Step(*(part.strip() for part in line.split("|"))))
        return cls(title.lstrip("# "), tuple(steps), tuple(answers))


def draw_walk(walk: Walk) -> str:
    """The steps from top to bottom, the answers as dashed lines on the right."""
    height = _TOP + _STEP * len(walk.steps) + 8
    parts = [_text(16, 34, walk.title, "ink title")]
    for number, step in enumerate(walk.steps, 1):
        top = _top(number)
        parts += [
            f'<rect x="16" y="{top}" width="98" height="{_BOX}" rx="6" class="folders"/>',
            _text(26, top + 28, f"{number}  {step.folder}", "ink"),
            f'<rect x="122" y="{top}" width="546" height="{_BOX}" rx="6" class="box"/>',
            _text(134, top + 19, _short(step.code), "ink code"),
            _text(134, top + 37, step.text, "dim"),
        ]
        if number < len(walk.steps):
            parts.append(f'<path d="M395 {top + _BOX}V{top + _STEP - 2}" class="line" marker-end="url(#tip)"/>')
    for lane, answer in enumerate(walk.answers):
        parts += _answer(answer, 686 + 28 * lane)
    return _svg(height, parts)


def draw_bars(rows: list[dict[str, str]], title: str) -> str:
    """Groups of horizontal bars: the first column names the group, each other one is a series of
    numbers.
    """
    group, *series = list(rows[0])
    most = max(float(row[name]) for row in rows for name in series)
    parts = [_text(16, 34, title, "ink title")]
    for index, name in enumerate(series):
        parts += [
            f'<rect x="{16 + 180 * index}" y="50" width="12" height="12" class="c{index}"/>',
            _text(34 + 180 * index, 61, name, "dim"),
        ]
    top = 84
    for row in rows:
        parts.append(_text(16, top + 8 * len(series) + 4, row[group], "ink"))
        for index, name in enumerate(series):
            y, length = top + 16 * index, 460 * float(row[name]) / most
            parts += [
                f'<rect x="200" y="{y}" width="{length:.0f}" height="12" class="c{index}"/>',
                _text(208 + round(length), y + 11, f"{float(row[name]):,}".removesuffix(".0"), "dim"),
            ]
        top += 16 * len(series) + 14
    return _svg(top + 4, parts)


def draw(source: Path) -> str:
    """The SVG of a text source."""
    text = source.read_text()
    if source.suffix == ".walk":
        return draw_walk(Walk.parse(text))
    title, _, table = text.partition("\n")
    return draw_bars(list(csv.DictReader(table.splitlines())), title.lstrip("# "))


def sources(folder: Path = FOLDER) -> Iterator[Path]:
    """Every text source of a picture."""
    yield from sorted(each for each in folder.iterdir() if each.suffix in {".walk", ".csv"})


def _answer(answer: Answer, x: int) -> list[str]:
    low, high = _top(answer.begin) + _BOX // 2, _top(answer.end) + _BOX // 2
    middle = (low + high) // 2
    turned = f'transform="rotate(90 {x + 8} {middle})" text-anchor="middle" '
    return [
        f'<path d="M668 {low}H{x}V{high}H670" class="back" marker-end="url(#answer)"/>',
        _text(x + 8, middle, answer.text, "said", turned),
    ]


def _top(number: int) -> int:
    return _TOP + _STEP * (number - 1)


def _short(code: str) -> str:
    """Without the distribution and the folder, which the folder already names:
    `module.Class.method`.
    """
    parts = code.split(".")
    while len(parts) > 2 and parts[0].islower() and parts[1].islower():
        parts = parts[1:]
    return ".".join(parts)


def _text(x: int, y: int, text: str, classes: str, more: str = "") -> str:
    return f'<text x="{x}" y="{y}" {more}class="{classes}">{escape(text)}</text>'


def _svg(height: int, parts: list[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">'
    sheet = f'<rect width="{_WIDTH}" height="{height}" rx="8" class="sheet"/>'
    return "\n".join([head, _STYLE, sheet, *parts, "</svg>", ""])


def main(folder: Path = FOLDER) -> None:
    for source in sources(folder):
        source.with_suffix(".svg").write_text(draw(source))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
