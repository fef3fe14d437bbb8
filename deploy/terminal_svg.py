"""Draw a terminal's output as an animated SVG of a few kilobytes. Pure.

Every line is a text of its own that is shown for its time; the whole moves up when the window is
full. It needs no script, so that it moves in a README as well. Whoever asks for less motion sees
the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from terminal import Line, Output, Shown, replay

PAUSE_S_MAX, PAUSE_S_MIN, END_S = 1.6, 0.8, 8.0
"""A wait longer than the first is cut to it; a new line may be read for the second at least; the
end stays for the third.
"""
_BRIEF_S = 0.12
LINE_PX, LETTER_PX, EDGE_PX, HEAD_PX = 19, 7.85, 18, 34
_STYLE = """
text{font:13px ui-monospace,"DejaVu Sans Mono",Menlo,Consolas,monospace;fill:#d7dde6;white-space:pre}
.b{font-weight:700}.green{fill:#5fd39a}.cyan{fill:#7cc7ff}.yellow{fill:#f2c86a}.red{fill:#ff8f86}
.magenta{fill:#c79bf2}.blue{fill:#86a9ff}.title{fill:#9aa6b8}
"""


@dataclass(frozen=True, slots=True)
class Span:
    """A line of text while it is shown; `until` None: to the end."""

    row: int
    line: Line
    since: float
    until: float | None


def draw(written: Iterable[Output], columns: int, rows: int, *, title: str) -> str:
    """The SVG, with a window of that many columns and rows."""
    changes = pace(replay(written, columns))
    spans = spans_of(changes)
    length = (changes[-1].at if changes else 0.0) + END_S
    width, height = round(columns * LETTER_PX + 2 * EDGE_PX), rows * LINE_PX + HEAD_PX + EDGE_PX
    moves = scroll(spans, rows)
    rules = [_visible(number, span, length) for number, span in enumerate(spans)]
    texts = [_text(number, span) for number, span in enumerate(spans)]
    end = moves[-1][1] * LINE_PX
    steps = "".join(f"{_percent(at, length)}{{transform:translateY(-{top * LINE_PX}px)}}" for at, top in moves)
    dots = "".join(f'<circle cx="{EDGE_PX + 4 + 17 * n}" cy="17" r="5" fill="#3a4352"/>' for n in range(3))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" aria-label="{escape(title)}">\n'
        f"<style>{_STYLE}"
        f"#all{{transform:translateY(-{end}px);animation:all {length:.1f}s step-end infinite}}@keyframes all{{{steps}}}\n"
        + "\n".join(rule for rule in rules if rule)
        + "\n@media (prefers-reduced-motion:reduce){*{animation:none!important}}</style>\n"
        f'<rect width="{width}" height="{height}" rx="10" fill="#12161d"/>{dots}'
        f'<text class="title" x="{width / 2:g}" y="21" text-anchor="middle">{escape(title)}</text>\n'
        f'<svg y="{HEAD_PX}" width="{width}" height="{rows * LINE_PX}"><g id="all">\n'
        + "\n".join(texts)
        + "\n</g></svg>\n</svg>\n"
    )


def pace(changes: Sequence[Shown]) -> list[Shown]:
    """The same with waits cut and lines that come at once apart, so that a person can read
    along.
    """
    paced: list[Shown] = []
    now, before, seen = 0.0, 0.0, -1
    for change in changes:
        least = PAUSE_S_MIN if change.row > seen and change.line else 0.0
        now += min(PAUSE_S_MAX, max(least, change.at - before))
        before, seen = change.at, max(seen, change.row)
        paced.append(change._replace(at=now))
    return paced


def spans_of(changes: Sequence[Shown]) -> list[Span]:
    """When each text was shown; texts that nobody could have read are left out."""
    spans: list[Span] = []
    shown: dict[int, Shown] = {}
    for change in changes:
        before = shown.get(change.row)
        if before is not None and before.line and change.at - before.at >= _BRIEF_S:
            spans.append(Span(before.row, before.line, before.at, change.at))
        shown[change.row] = change
    spans += [Span(last.row, last.line, last.at, None) for last in shown.values() if last.line]
    return sorted(spans, key=lambda span: (span.since, span.row))


def scroll(spans: Sequence[Span], rows: int) -> list[tuple[float, int]]:
    """From which time on which row is the uppermost."""
    moves = [(0.0, 0)]
    for span in spans:
        top = max(0, span.row + 1 - rows)
        if top > moves[-1][1]:
            moves.append((span.since, top))
    return moves


def _percent(at: float, length: float) -> str:
    return f"{100 * at / length:.2f}%"


def _visible(number: int, span: Span, length: float) -> str:
    last = "" if span.until is None else f"{_percent(span.until, length)}{{opacity:0}}"
    end = "" if span.until is None else "opacity:0;"
    return (
        f"#l{number}{{{end}animation:k{number} {length:.1f}s step-end infinite}}"
        f"@keyframes k{number}{{0%{{opacity:0}}{_percent(span.since, length)}{{opacity:1}}{last}}}"
    )


def _text(number: int, span: Span) -> str:
    parts = []
    for text, style in span.line:
        classes = " ".join(filter(None, (style.colour, "b" if style.bold else "")))
        parts.append(f'<tspan class="{classes}">{escape(text)}</tspan>' if classes else escape(text))
    return f'<text id="l{number}" x="{EDGE_PX}" y="{span.row * LINE_PX + 14}">{"".join(parts)}</text>'
