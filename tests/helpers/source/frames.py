"""Messages of pgoutput in frames as a walsender makes them."""

from __future__ import annotations

_END_AT = {b"C": 10, b"P": 10, b"K": 10, b"r": 10, b"c": 14, b"p": 10, b"M": 2}
"""Where a message says the end of its record."""


def frame(payload: bytes) -> tuple[int, bytes]:
    """The message with its position: of an outcome and a prepare, where its record ends."""
    at = _END_AT.get(payload[:1])
    return (0 if at is None else int.from_bytes(payload[at : at + 8], "big"), payload)
