"""The recording of the demo: what a terminal showed and when, and its picture. `make recording`
runs the demo itself.
"""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

import recording
from terminal import Line, Output, Shown, Style, replay
from terminal_svg import END_S, PAUSE_S_MAX, PAUSE_S_MIN, Span, draw, pace, scroll, spans_of

ROOT = Path(__file__).parents[3]


def text(line: Line) -> str:
    return "".join(part for part, _ in line)


def last_lines(*data: str, columns: int = 20) -> dict[int, str]:
    changes = replay([Output(float(n), each.encode()) for n, each in enumerate(data)], columns)
    return {change.row: text(change.line) for change in changes}


@pytest.mark.parametrize(
    ("written", "lines"),
    [
        ("a\r\nb\r\n", {0: "a", 1: "b"}),
        ("abc\rx", {0: "xbc"}),
        ("abc\r\x1b[2K", {}),
        ("abc\r\x1b[2Kd", {0: "d"}),
        ("abcdef\x1b[3D", {0: "abcdef"}),  # what it does not know changes nothing
        ("one\r\ntwo\x1b[1A\r\x1b[2Knew", {0: "new", 1: "two"}),
        ("x" * 25, {0: "x" * 20, 1: "x" * 5}),
    ],
)
def test_lines_are_what_the_terminal_shows(written: str, lines: dict[int, str]) -> None:
    assert {row: shown for row, shown in last_lines(written).items() if shown} == lines


def test_a_character_that_two_reads_cut_is_one() -> None:
    head, tail = "✓".encode()[:1], "✓".encode()[1:]
    assert [text(change.line) for change in replay([Output(0, head), Output(1, tail)], 9)] == ["✓"]


def test_colours() -> None:
    (change,) = replay([Output(0, b"\x1b[1;36m1. A bank\x1b[0m, small")], 40)
    assert change.line == (("1. A bank", Style("cyan", bold=True)), (", small", Style()))


def test_a_spinner_that_turns_is_no_change() -> None:
    changes = replay([Output(float(n), f"\r\x1b[2K{glyph} waits".encode()) for n, glyph in enumerate("⠋⠙⠹")], 40)
    assert [(change.at, text(change.line)) for change in changes] == [(0.0, "⠋ waits")]


def test_waits_are_cut_and_lines_that_come_at_once_are_apart() -> None:
    line: Line = (("x", Style()),)
    paced = pace([Shown(50.0, 0, line), Shown(50.0, 1, line), Shown(50.0, 0, ()), Shown(200.0, 2, line)])
    assert [change.at for change in paced] == [PAUSE_S_MAX, pytest.approx(PAUSE_S_MAX + PAUSE_S_MIN)] + [
        pytest.approx(PAUSE_S_MAX + PAUSE_S_MIN + more) for more in (0, PAUSE_S_MAX)
    ]


def test_a_text_is_shown_until_another_takes_its_line() -> None:
    one, two = (("one", Style()),), (("two", Style()),)
    spans = spans_of([Shown(1.0, 0, one), Shown(1.05, 1, one), Shown(1.1, 1, two), Shown(5.0, 0, two)])
    assert spans == [Span(0, one, 1.0, 5.0), Span(1, two, 1.1, None), Span(0, two, 5.0, None)]


def test_the_window_follows_the_last_line() -> None:
    line: Line = (("x", Style()),)
    assert scroll([Span(row, line, float(row), None) for row in range(6)], 3) == [
        (0.0, 0),
        (3.0, 1),
        (4.0, 2),
        (5.0, 3),
    ]


def test_the_picture_is_an_svg_of_its_lines_and_escapes_them() -> None:
    svg = draw([Output(0.0, b"a <b> & 'c'\r\n"), Output(2.0, b"\x1b[32mok\x1b[0m")], 40, 5, title="demo")
    root = ElementTree.fromstring(svg)
    texts = ["".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts == ["demo", "a <b> & 'c'", "ok"]
    assert f"{2 * PAUSE_S_MIN + END_S:.1f}s" in svg or f"{PAUSE_S_MIN + PAUSE_S_MAX + END_S:.1f}s" in svg


def test_a_command_is_recorded_in_a_terminal_with_its_exit_status() -> None:
    code = "import sys; print(sys.stdout.isatty(), flush=True); print('ende ✓'); sys.exit(3)"
    written, status = recording.record([sys.executable, "-c", code], columns=60)
    assert status == 3
    assert b"".join(each.data for each in written).decode() == "True\r\nende ✓\r\n"
    assert recording.from_cast(recording.to_cast(written, 60, 10)) == [
        Output(round(each.at, 3), each.data) for each in written
    ]


def test_the_picture_of_the_docs_is_small() -> None:
    picture = ROOT / recording.PICTURE
    assert picture.stat().st_size < recording.BYTES_MAX
    assert "The mirror equals the source." in picture.read_text()
