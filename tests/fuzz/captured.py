"""Messages as real servers sent them (`capture.py` wrote them down), and what must hold of any
bytes.
"""

from __future__ import annotations

from pathlib import Path

from twofold.errors import MalformedMessage
from twofold.source.decoder import decode
from twofold.source.messages import Relation, Type
from unit.source.pgoutput_bytes import encode

FILE = Path(__file__).with_name("corpus") / "captured.txt"


def captured() -> list[tuple[bool, bytes]]:
    """Whether a stream block was open, and the payload."""
    lines = (line.split() for line in FILE.read_text().splitlines())
    return [(in_stream == "1", bytes.fromhex(payload)) for in_stream, payload in lines]


def check(payload: bytes, *, in_stream: bool) -> bool:
    """A message that means exactly its bytes, or MalformedMessage with an offset in them.

    Returns whether it was a message.
    """
    try:
        message = decode(payload, in_stream=in_stream)
    except MalformedMessage as error:
        if not 0 <= error.offset <= len(payload):
            raise AssertionError(f"the offset {error.offset} is not in the message") from error
        return False
    # An empty schema is written as such and read as pg_catalog.
    if not (isinstance(message, Relation | Type) and message.schema == "pg_catalog"):
        assert encode(message) == payload
    return True
