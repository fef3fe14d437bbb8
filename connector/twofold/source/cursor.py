"""`Cursor`: reads numbers, strings and counted bytes forward through one payload of pgoutput.

Pure. Never reads past the end: what is not there raises MalformedMessage with the offset and what was wanted.
"""

from __future__ import annotations

from struct import Struct
from typing import Any

from twofold.errors import MalformedMessage
from twofold_common.positions import Lsn

POSTGRES_EPOCH_US = 946_684_800_000_000
"""2000-01-01, from which PostgreSQL counts, in microseconds of the Unix epoch."""

_U16 = Struct(">H")
_U32 = Struct(">I")
_I32 = Struct(">i")
_U64 = Struct(">Q")
_I64 = Struct(">q")


class Cursor:
    """Each read names what it wanted, for the error."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def _fixed(self, form: Struct, what: str) -> int:
        end = self.at + form.size
        if end > len(self.data):
            raise MalformedMessage(f"the message ends within {what}", offset=self.at)
        value: int = form.unpack_from(self.data, self.at)[0]
        self.at = end
        return value

    def numbers(self, form: Struct, whats: tuple[str, ...]) -> tuple[Any, ...]:
        """Several in a row, read at once."""
        end = self.at + form.size
        if end > len(self.data):
            for what, letter in zip(whats, form.format.lstrip(">"), strict=True):
                self._fixed(Struct(">" + letter), what)
        values = form.unpack_from(self.data, self.at)
        self.at = end
        return values

    def u8(self, what: str) -> int:
        if self.at >= len(self.data):
            raise MalformedMessage(f"the message ends before {what}", offset=self.at)
        self.at += 1
        return self.data[self.at - 1]

    def u16(self, what: str) -> int:
        return self._fixed(_U16, what)

    def u32(self, what: str) -> int:
        return self._fixed(_U32, what)

    def i32(self, what: str) -> int:
        return self._fixed(_I32, what)

    def lsn(self, what: str) -> Lsn:
        return Lsn(self._fixed(_U64, what))

    def time(self, what: str) -> int:
        return self._fixed(_I64, what) + POSTGRES_EPOCH_US

    def counted(self, what: str) -> bytes:
        size = self.u32(f"the length of {what}")
        if size > len(self.data) - self.at:
            raise MalformedMessage(f"{what} is said to have {size} bytes and the message ends before", offset=self.at)
        self.at += size
        return self.data[self.at - size : self.at]

    def text(self, what: str) -> str:
        """A string in UTF-8 that ends with a zero byte."""
        start, end = self.at, self.data.find(b"\0", self.at)
        if end < 0:
            raise MalformedMessage(f"{what} has no end", offset=start)
        self.at = end + 1
        try:
            return self.data[start:end].decode()
        except UnicodeDecodeError as error:
            raise MalformedMessage(f"{what} is not UTF-8", offset=start + error.start) from None

    def flags(self, what: str, known: int) -> int:
        value = self.u8(what)
        if value & ~known:
            raise MalformedMessage(f"{what} {value:#04x} has unknown bits", offset=self.at - 1)
        return value

    def end(self) -> None:
        if self.at != len(self.data):
            raise MalformedMessage(f"{len(self.data) - self.at} bytes are left over", offset=self.at)
