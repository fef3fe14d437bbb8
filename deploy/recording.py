"""Record `twofold demo` in a terminal of its own and draw it as an animated SVG: `make recording`.

The output is kept with its times first (`dist/demo.cast`, asciicast 2), so that a picture can be
drawn again without another run of the demo: `python deploy/recording.py --redraw`.
"""

from __future__ import annotations

import argparse
import codecs
import fcntl
import json
import os
import pty
import struct
import sys
import termios
import time
from collections.abc import Sequence
from pathlib import Path

from terminal import Output
from terminal_svg import draw

COLUMNS, ROWS = 104, 30
CAST, PICTURE = Path("dist/demo.cast"), Path("docs/learn/demo.svg")
BYTES_MAX = 300_000


def record(command: Sequence[str], columns: int = COLUMNS, rows: int = 200) -> tuple[list[Output], int]:
    """What the command writes to a terminal of that size, with seconds since its start; and its
    exit status.
    """
    began = time.monotonic()
    process, terminal = pty.fork()
    if not process:
        os.environ |= {"TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": str(rows)}
        os.execvp(command[0], list(command))  # noqa: S606  (the child becomes the command)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    written: list[Output] = []
    while data := _read(terminal):
        written.append(Output(time.monotonic() - began, data))
    os.close(terminal)
    return written, os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def _read(terminal: int) -> bytes:
    """The next bytes. None are left once every process of the terminal has ended: Linux says so
    with an error.
    """
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


def to_cast(written: Sequence[Output], columns: int, rows: int) -> str:
    """The recording in the format of asciinema, one line an output."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")  # a read may end within a character
    header = {"version": 2, "width": columns, "height": rows}
    lines = [json.dumps(header)]
    lines += [json.dumps([round(each.at, 3), "o", decoder.decode(each.data)]) for each in written]
    return "\n".join(lines) + "\n"


def from_cast(text: str) -> list[Output]:
    """The outputs of a recording."""
    _, *lines = text.splitlines()
    return [Output(at, data.encode()) for at, _, data in map(json.loads, lines)]


def main() -> int:
    """Record and draw. The exit status is the demo's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--redraw", action="store_true", help=f"draw {CAST} again, without running the demo")
    if not parser.parse_args().redraw:
        written, status = record([sys.executable, "-m", "twofold", "demo"])
        if status:
            sys.stderr.write(b"".join(each.data for each in written).decode(errors="replace"))
            return status
        CAST.parent.mkdir(exist_ok=True)
        CAST.write_text(to_cast(written, COLUMNS, ROWS))
    picture = draw(from_cast(CAST.read_text()), COLUMNS, ROWS, title="twofold demo")
    if len(picture.encode()) > BYTES_MAX:
        sys.stderr.write(f"{PICTURE} would have {len(picture.encode())} bytes, more than {BYTES_MAX}\n")
        return 1
    PICTURE.write_text(picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
