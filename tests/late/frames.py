"""Kafka's frames, as far as a late request needs them: the four transactional requests, and the
error codes of their answers.

Pure: bytes in, values out. A body is a frame without the four bytes of its length.

| request | versions | flexible from |
|---|---|---|
| Produce | 3 to 12 | 9 |
| InitProducerId | 0 to 5 | 2 |
| AddPartitionsToTxn | 0 to 3 (later ones are the brokers' own) | 3 |
| EndTxn | 0 to 5 | 3 |
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from enum import IntEnum


class Api(IntEnum):
    PRODUCE = 0
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS = 24
    END_TXN = 26


_VERSIONS = {
    Api.PRODUCE: (3, 12),
    Api.INIT_PRODUCER_ID: (0, 5),
    Api.ADD_PARTITIONS: (0, 3),
    Api.END_TXN: (0, 5),
}
_FLEXIBLE = {Api.PRODUCE: 9, Api.INIT_PRODUCER_ID: 2, Api.ADD_PARTITIONS: 3, Api.END_TXN: 3}
_APIS = frozenset(map(int, Api))


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a transactional producer."""

    api: Api
    version: int
    correlation: int
    transactional_id: str
    epoch: int = -1
    commit: bool | None = None
    """Of EndTxn."""
    partitions: tuple[tuple[str, int], ...] = ()

    @property
    def flexible(self) -> bool:
        return self.version >= _FLEXIBLE[self.api]

    @property
    def kind(self) -> str:
        """As counts name it."""
        if self.api is Api.END_TXN:
            return "commit" if self.commit else "abort"
        return {Api.PRODUCE: "produce", Api.INIT_PRODUCER_ID: "init", Api.ADD_PARTITIONS: "add"}[self.api]


class Primitives:
    """Reads Kafka's primitive types one after the other; compact ones where `flexible`."""

    def __init__(self, body: bytes, at: int, flexible: bool) -> None:
        self.body, self.at, self.flexible = body, at, flexible

    def number(self, form: str) -> int:
        packed = struct.Struct(">" + form)
        value: int = packed.unpack_from(self.body, self.at)[0]
        self.at += packed.size
        return value

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.body[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def text(self) -> str | None:
        size = self.varint() - 1 if self.flexible else self.number("h")
        if size < 0:
            return None
        self.at += size
        return self.body[self.at - size : self.at].decode()

    def count(self) -> int:
        """Of an array's elements, or of a record batch's bytes."""
        return self.varint() - 1 if self.flexible else self.number("i")

    def tags(self) -> None:
        if self.flexible:
            for _ in range(self.varint()):
                self.varint()
                size = self.varint()  # before the sum: reading it moves on
                self.at += size


def correlation_of(body: bytes) -> int:
    """Of an answer."""
    return int.from_bytes(body[:4], "big", signed=True)


def read_request(body: bytes) -> Request | None:
    """None: not one of the four, not transactional, or a version that no client of a transaction
    uses.
    """
    api, version, correlation = struct.unpack_from(">hhi", body)
    if api not in _APIS:
        return None
    low, high = _VERSIONS[Api(api)]
    if not low <= version <= high:
        return None
    reader = Primitives(body, 8, False)
    reader.text()  # the client's name is never compact
    reader.flexible = version >= _FLEXIBLE[Api(api)]
    reader.tags()
    transactional_id = reader.text()
    if transactional_id is None:
        return None
    request = Request(Api(api), version, correlation, transactional_id)
    return _READ[request.api](request, reader)


def _read_end(request: Request, reader: Primitives) -> Request:
    reader.at += 8
    return replace(request, epoch=reader.number("h"), commit=bool(reader.number("b")))


def _read_init(request: Request, reader: Primitives) -> Request:
    reader.at += 4
    if request.version < 3:
        return request
    reader.at += 8
    return replace(request, epoch=reader.number("h"))


def _read_add(request: Request, reader: Primitives) -> Request:
    reader.at += 8
    epoch = reader.number("h")
    partitions = []
    for _ in range(reader.count()):
        topic = reader.text() or ""
        partitions += [(topic, reader.number("i")) for _ in range(reader.count())]
        reader.tags()
    return replace(request, epoch=epoch, partitions=tuple(partitions))


def _read_produce(request: Request, reader: Primitives) -> Request:
    reader.at += 6  # acks, timeout
    epoch, partitions = -1, []
    for _ in range(reader.count()):
        topic = reader.text() or ""
        for _ in range(reader.count()):
            partitions.append((topic, reader.number("i")))
            size = reader.count()
            # A batch's producer epoch is behind 51 bytes of offsets, length, checksum, times and
            # producer id.
            (epoch,) = struct.unpack_from(">h", reader.body, reader.at + 51)
            reader.at += size
            reader.tags()
        reader.tags()
    return replace(request, epoch=epoch, partitions=tuple(partitions))


_READ = {
    Api.END_TXN: _read_end,
    Api.INIT_PRODUCER_ID: _read_init,
    Api.ADD_PARTITIONS: _read_add,
    Api.PRODUCE: _read_produce,
}


def read_errors(request: Request, body: bytes) -> tuple[int, ...]:
    """The error codes in the answer to a request, one a partition where there are partitions."""
    reader = Primitives(body, 4, request.flexible)
    reader.tags()
    if request.api is not Api.PRODUCE:
        reader.at += 4  # how long the broker throttled
    if request.api not in (Api.PRODUCE, Api.ADD_PARTITIONS):
        return (reader.number("h"),)
    errors = []
    for _ in range(reader.count()):
        reader.text()
        for _ in range(reader.count()):
            reader.at += 4
            errors.append(reader.number("h"))
            if request.api is Api.PRODUCE:
                _skip_offsets(request, reader)
            reader.tags()
        reader.tags()
    return tuple(errors)


def _skip_offsets(request: Request, reader: Primitives) -> None:
    reader.at += 16 + (8 if request.version >= 5 else 0)  # offset, time, first offset of the log
    if request.version >= 8:
        for _ in range(reader.count()):
            reader.at += 4
            reader.text()
            reader.tags()
        reader.text()
