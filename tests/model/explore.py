"""Visit every world of a scenario."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple, Protocol, TypeVar

from model.logs import Violation
from twofold.errors import RunEnded

W = TypeVar("W")


class Explored(Protocol[W]):
    """Worlds, and which of them can follow which."""

    def first(self) -> W: ...

    def pack(self, world: W, /) -> Hashable: ...

    def after(self, world: W, /) -> Iterator[W]: ...


class Found(NamedTuple):
    """How many worlds there are, and the first broken promise."""

    states: int
    violation: str | None
    way: tuple[Any, ...]


def explore(model: Explored[W]) -> Found:
    """Depth first, every world once.

    On a violation, also when the bridge itself raises: the way that led there.
    """
    first = model.first()
    seen, way = {model.pack(first)}, [(first, model.after(first))]
    while way:
        following = way[-1][1]
        try:
            fresh = next((each for each in following if model.pack(each) not in seen), None)
        except (Violation, RunEnded, RuntimeError) as broken:
            return Found(len(seen), str(broken), tuple(world for world, _ in way))
        if fresh is None:
            way.pop()
        else:
            seen.add(model.pack(fresh))
            way.append((fresh, model.after(fresh)))
    return Found(len(seen), None, ())
