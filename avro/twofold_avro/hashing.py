"""HMAC-SHA-256 of values, as the Avro string that a policy's column carries. Pure.

Compiled like the transcoder, which calls it as C by `hashing.pxd`. The inner and the outer hash of
the key are made once and copied for each value, which takes a third of the time of `hmac.digest`.
Columns that are joined have few values and many rows: the hashes of the last short values are
remembered.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twofold_avro import plain as cython
else:
    try:
        import cython
    except ModuleNotFoundError:
        from twofold_avro import plain as cython

if cython.compiled:
    from cython.cimports.libc.string import memcmp, memcpy

KEY_BYTES_MIN = 32
_BLOCK_BYTES = 64
_SIZE = b"\x80\x01"
"""64, as Avro writes it: so many hexadecimal digits follow."""

HASH_SIZE = len(_SIZE) + 64
"""Bytes of a hash as an encoded string."""
HASH_BYTES = cython.declare(cython.Py_ssize_t, HASH_SIZE)
PLACE_BYTES = cython.declare(cython.Py_ssize_t, 128)
"""A place has a value's size and one, the value, and its hash."""
SHORT_BYTES = cython.declare(cython.Py_ssize_t, 128 - HASH_SIZE - 1)
PLACE_BITS = cython.declare(cython.uint, 14)
WAYS = cython.declare(cython.Py_ssize_t, 4)


class KeyedHash:
    """The hash of one plan, which one thread uses.

    A value is looked up at the place that its bytes give, and at the places behind. Its bytes are
    compared where they are: an object for each value and a dictionary took twice as long.
    """

    def __init__(self, key: bytes) -> None:
        if len(key) < KEY_BYTES_MIN:
            raise ValueError(f"a key of {len(key)} bytes, where {KEY_BYTES_MIN} are needed")
        if len(key) > _BLOCK_BYTES:
            key = hashlib.sha256(key).digest()
        padded = key.ljust(_BLOCK_BYTES, b"\0")
        self.inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in padded))
        self.outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in padded))
        self.store = bytearray(((1 << PLACE_BITS) + WAYS) * PLACE_BYTES)
        self.places = self.store
        self.made = b""
        self.turn = 0

    def find(self, src: cython.p_uchar, at: cython.Py_ssize_t, size: cython.Py_ssize_t) -> cython.p_uchar:
        """Return the hash of a value as an encoded string, valid until the next call."""
        if size > SHORT_BYTES:
            self.made = self.encode(src[at : at + size])
            return self.made
        first: cython.Py_ssize_t = first_place(src, at, size) * PLACE_BYTES
        place: cython.Py_ssize_t = first
        while place < first + WAYS * PLACE_BYTES:
            if self.places[place] == size + 1 and is_same(self.places, place + 1, src, at, size):
                return hash_at(self.places, place)
            place += PLACE_BYTES
        self.made = self.encode(src[at : at + size])
        self.turn = (self.turn + 1) & (WAYS - 1)
        place = first + self.turn * PLACE_BYTES
        self.places[place] = size + 1
        write(self.places, place + 1, src, at, size)
        write(self.places, place + PLACE_BYTES - HASH_BYTES, self.made, 0, HASH_BYTES)
        return self.made

    def encode(self, value: bytes) -> bytes:
        """Make the hash of a value as an encoded string."""
        inner = self.inner.copy()
        inner.update(value)
        outer = self.outer.copy()
        outer.update(inner.digest())
        return _SIZE + outer.hexdigest().encode()


@cython.cfunc
@cython.inline
def first_place(src: cython.p_uchar, at: cython.Py_ssize_t, size: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Multiplicative hashing: values that differ anywhere differ in the highest bits."""
    # As variables, because Cython takes literals above 2**31 for Python's numbers.
    bits: cython.ulonglong = 0xFFFFFFFFFFFFFFFF
    factor: cython.ulonglong = 0x9E3779B97F4A7C15
    number: cython.ulonglong = size
    word: cython.ulonglong
    end: cython.Py_ssize_t = at + size
    while at + 4 <= end:
        word = src[at + 3]
        word = word << 24 | src[at + 2] << 16 | src[at + 1] << 8 | src[at]
        number = (number ^ word) * factor & bits
        at += 4
    while at < end:
        number = (number ^ src[at]) * factor & bits
        at += 1
    return number >> (64 - PLACE_BITS)


@cython.cfunc
@cython.inline
def is_same(
    known: cython.p_uchar,
    known_at: cython.Py_ssize_t,
    src: cython.p_uchar,
    at: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
) -> cython.bint:
    if cython.compiled:
        return bool(memcmp(known + known_at, src + at, size) == 0)
    return bool(known[known_at : known_at + size] == src[at : at + size])


@cython.cfunc
@cython.inline
def hash_at(places: cython.p_uchar, place: cython.Py_ssize_t) -> cython.p_uchar:
    """Return the hash of a place."""
    if cython.compiled:
        return places + place + PLACE_BYTES - HASH_BYTES
    return places[place + PLACE_BYTES - HASH_BYTES : place + PLACE_BYTES]


@cython.cfunc
@cython.inline
def write(
    to: cython.p_uchar, to_at: cython.Py_ssize_t, src: cython.p_uchar, at: cython.Py_ssize_t, size: cython.Py_ssize_t
) -> None:
    if cython.compiled:
        memcpy(to + to_at, src + at, size)
    else:
        to[to_at : to_at + size] = src[at : at + size]
