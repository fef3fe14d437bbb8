"""Reads numbers, strings and counted bytes forward through one payload of pgoutput.

Pure. It never reads past the end: a missing field raises MalformedMessage with its offset and name.
"""

from __future__ import annotations

from struct import Struct
from typing import Any

from twofold.errors import MalformedMessage
from twofold_common.positions import Lsn

POSTGRES_EPOCH_US = 946_684_800_000_000
"""2000-01-01, where PostgreSQL's times begin, in microseconds of the Unix epoch."""

_U16 = Struct(">H")
_U32 = Struct(">I")
_I32 = Struct(">i")
_U64 = Struct(">Q")
_I64 = Struct(">q")


class Cursor:
    """A read position in one payload. Each read names its field, for the error."""

    __slots__ = ("data", "offset")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.offset = 0

    def _fixed(self, form: Struct, field: str) -> int:
        end = self.offset + form.size
        if end > len(self.data):
            raise MalformedMessage(f"the message ends within {field}", offset=self.offset)
        value: int = form.unpack_from(self.data, self.offset)[0]
        self.offset = end
        return value

    def numbers(self, form: Struct, fields: tuple[str, ...]) -> tuple[Any, ...]:
        """Read several numbers in a row at once."""
        end = self.offset + form.size
        if end > len(self.data):
            for field, letter in zip(fields, form.format.lstrip(">"), strict=True):
                self._fixed(Struct(">" + letter), field)
        values = form.unpack_from(self.data, self.offset)
        self.offset = end
        return values

    def u8(self, field: str) -> int:
        if self.offset >= len(self.data):
            raise MalformedMessage(f"the message ends before {field}", offset=self.offset)
        self.offset += 1
        return self.data[self.offset - 1]

    def u16(self, field: str) -> int:
        return self._fixed(_U16, field)

    def u32(self, field: str) -> int:
        return self._fixed(_U32, field)

    def i32(self, field: str) -> int:
        return self._fixed(_I32, field)

    def lsn(self, field: str) -> Lsn:
        return Lsn(self._fixed(_U64, field))

    def time(self, field: str) -> int:
        return self._fixed(_I64, field) + POSTGRES_EPOCH_US

    def counted(self, field: str) -> bytes:
        size = self.u32(f"the length of {field}")
        if size > len(self.data) - self.offset:
            raise MalformedMessage(
                f"{field} should have {size} bytes, but the message ends before them", offset=self.offset
            )
        self.offset += size
        return self.data[self.offset - size : self.offset]

    def text(self, field: str) -> str:
        """Read a UTF-8 string that ends with a zero byte."""
        start, end = self.offset, self.data.find(b"\0", self.offset)
        if end < 0:
            raise MalformedMessage(f"{field} has no end", offset=start)
        self.offset = end + 1
        try:
            return self.data[start:end].decode()
        except UnicodeDecodeError as error:
            raise MalformedMessage(f"{field} is not UTF-8", offset=start + error.start) from None

    def flags(self, field: str, known: int) -> int:
        value = self.u8(field)
        if value & ~known:
            raise MalformedMessage(f"{field} {value:#04x} has unknown bits", offset=self.offset - 1)
        return value

    def end(self) -> None:
        if self.offset != len(self.data):
            raise MalformedMessage(
                f"{len(self.data) - self.offset} bytes follow the end of the message", offset=self.offset
            )
