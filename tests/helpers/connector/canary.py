"""A canary: values that must be found in nothing that a connector writes, in any form that bytes
can have them in; and the places to look.
"""

from __future__ import annotations

import re
import struct
import subprocess
import urllib.request
from pathlib import Path

from fixtures.connector import Installation, Running
from helpers.reading import read_to_end

TEXT, NUMBER = "canary-in-a-mine", 918273645


def _varint(number: int) -> bytes:
    """As Avro writes a number."""
    left, data = number << 1, b""
    while left > 0x7F:
        data += bytes([left & 0x7F | 0x80])
        left >>= 7
    return data + bytes([left])


FORMS = (
    *(TEXT.encode(), _varint(NUMBER), struct.pack(">i", NUMBER), str(NUMBER).encode()),
    *(each.hex().encode() for each in (TEXT.encode(), _varint(NUMBER))),
)


def sings(data: bytes | str) -> bool:
    """Whether a canary is in it, in any form."""
    data = data.encode() if isinstance(data, str) else data
    return any(form in data for form in FORMS)


def pages(run: Running) -> dict[str, str]:
    """The status page, the metrics and the status of a running connector."""
    found = re.search(r"status page: (http://\S+?)/?\s", run.said())
    assert found is not None
    said = {}
    for path in ("/", "/metrics", "/api/status"):
        with urllib.request.urlopen(found[1] + path, timeout=20) as answer:
            said[path] = answer.read().decode()
    return said


COMMANDS = ("status", "doctor", "audit", "backfill status", "prepared list", "prepared list --json", "config show")


def told(made: Installation) -> dict[str, str]:
    """What the commands tell; whatever they find."""
    done = {c: subprocess.run(made.command(*c.split()), capture_output=True, text=True, check=False, timeout=120) for c in COMMANDS}  # fmt: skip
    return {command: each.stdout + each.stderr for command, each in done.items()}


def spooled(run: Running, folder: Path) -> list[bytes]:
    """The spool's files, which have no names, as long as the process has them open."""
    files = (each for each in Path(f"/proc/{run.process.pid}/fd").iterdir() if str(folder) in str(each.readlink()))
    return [data for each in files if (data := each.read_bytes())]


def raw(made: Installation) -> list[tuple[str, bytes]]:
    """Every record of the prefix, visible or not: key and value as bytes, with its topic's name."""
    messages = read_to_end(
        made.reader.bootstrap, made.reader.topics(made.prefix), isolation="read_uncommitted", patience_s=20
    )
    return [(str(each.topic()), (each.key() or b"") + (each.value() or b"")) for each in messages]
