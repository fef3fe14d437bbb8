"""`SortedMap`: an immutable map in the order of its keys, for a state with thousands of entries.

A change copies one chunk of entries and the list of chunks, so a change costs the same for four
entries and little more for five thousand. A tuple would be copied whole.

Two maps with the same entries are equal and have the same hash, however they were made: the model
checker recognises a state that it has visited.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

CHUNK_MAX = 64
_Chunk = tuple[tuple[Any, ...], tuple[Any, ...]]  # keys and their values


class SortedMap(Generic[K, V]):
    """The entries lie in chunks of at most `CHUNK_MAX`; `_firsts` are the chunks' first keys."""

    __slots__ = ("_chunks", "_firsts")

    def __init__(self, entries: Iterable[tuple[K, V]] = ()) -> None:
        ordered = sorted(entries, key=lambda entry: entry[0])  # type: ignore[arg-type, return-value]
        pieces = [ordered[at : at + CHUNK_MAX] for at in range(0, len(ordered), CHUNK_MAX)]
        self._chunks: tuple[_Chunk, ...] = tuple(
            (tuple(key for key, _ in piece), tuple(value for _, value in piece)) for piece in pieces
        )
        self._firsts: tuple[Any, ...] = tuple(keys[0] for keys, _ in self._chunks)

    def get(self, key: K) -> V | None:
        """Return the key's value; None if the key is not here."""
        at = bisect_right(self._firsts, key) - 1
        if at < 0:
            return None
        keys, values = self._chunks[at]
        place = bisect_left(keys, key)
        found: V | None = values[place] if place < len(keys) and keys[place] == key else None
        return found

    def put(self, key: K, value: V) -> SortedMap[K, V]:
        """Return the map with this entry, which replaces the key's former entry."""
        if not self._firsts:
            return self._made((((key,), (value,)),), (key,))
        at = max(bisect_right(self._firsts, key) - 1, 0)
        keys, values = self._chunks[at]
        place = bisect_left(keys, key)
        if place < len(keys) and keys[place] == key:
            changed: tuple[_Chunk, ...] = ((keys, (*values[:place], value, *values[place + 1 :])),)
        else:
            keys, values = (*keys[:place], key, *keys[place:]), (*values[:place], value, *values[place:])
            changed = ((keys, values),) if len(keys) <= CHUNK_MAX else _halves(keys, values)
        return self._replaced(at, changed)

    def without(self, key: K) -> SortedMap[K, V]:
        """Return the map without this key; the key may be missing already."""
        at = bisect_right(self._firsts, key) - 1
        if at < 0:
            return self
        keys, values = self._chunks[at]
        place = bisect_left(keys, key)
        if place == len(keys) or keys[place] != key:
            return self
        keys, values = keys[:place] + keys[place + 1 :], values[:place] + values[place + 1 :]
        return self._replaced(at, ((keys, values),) if keys else ())

    @property
    def first(self) -> V | None:
        """The value of the least key; None if the map is empty."""
        found: V | None = self._chunks[0][1][0] if self._chunks else None
        return found

    def since(self, key: K) -> Iterator[V]:
        """Yield the values of this key and of all greater keys."""
        at = max(bisect_right(self._firsts, key) - 1, 0)
        for keys, values in self._chunks[at : at + 1]:
            yield from values[bisect_left(keys, key) :]
        for _, values in self._chunks[at + 1 :]:
            yield from values

    def items(self) -> Iterator[tuple[K, V]]:
        for keys, values in self._chunks:
            yield from zip(keys, values, strict=True)

    def values(self) -> Iterator[V]:
        for _, values in self._chunks:
            yield from values

    def __contains__(self, key: K) -> bool:
        at = bisect_right(self._firsts, key) - 1
        if at < 0:
            return False
        keys = self._chunks[at][0]
        place = bisect_left(keys, key)
        return place < len(keys) and bool(keys[place] == key)

    def __len__(self) -> int:
        return sum(len(keys) for keys, _ in self._chunks)

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SortedMap):
            return NotImplemented
        return self._chunks == other._chunks or (len(self) == len(other) and [*self.items()] == [*other.items()])

    def __hash__(self) -> int:
        return hash(tuple(self.items()))

    def __repr__(self) -> str:
        return f"SortedMap({dict(self.items())!r})"

    def _replaced(self, at: int, changed: tuple[_Chunk, ...]) -> SortedMap[K, V]:
        firsts = tuple([keys[0] for keys, _ in changed])
        return self._made(
            self._chunks[:at] + changed + self._chunks[at + 1 :],
            self._firsts[:at] + firsts + self._firsts[at + 1 :],
        )

    @staticmethod
    def _made(chunks: tuple[_Chunk, ...], firsts: tuple[Any, ...]) -> SortedMap[K, V]:
        made: SortedMap[K, V] = SortedMap.__new__(SortedMap)
        made._chunks, made._firsts = chunks, firsts
        return made


def _halves(keys: tuple[Any, ...], values: tuple[Any, ...]) -> tuple[_Chunk, _Chunk]:
    half = len(keys) // 2
    return (keys[:half], values[:half]), (keys[half:], values[half:])
