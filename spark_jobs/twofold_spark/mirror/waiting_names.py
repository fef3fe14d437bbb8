"""Names the global transactions that hold others back. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from twofold_common.global_cut import Waiting


class WaitingNames:
    """Names each once, when it holds others back in two rounds: most end within one."""

    def __init__(self) -> None:
        self._before: set[str] = set()
        self._named: set[str] = set()

    def describe_new(self, waiting: Iterable[Waiting]) -> list[str]:
        """Return a line for each that is to be named in this round."""
        held = {each.global_id: each for each in waiting}
        new = [each for each in held.values() if each.global_id in self._before - self._named]
        self._before = {*held}
        self._named = (self._named & held.keys()) | {each.global_id for each in new}
        return [
            f"mirror: waits for the global transaction {each.global_id}: committed in {', '.join(each.committed_in)}, "
            f"in doubt in {', '.join(each.in_doubt_in)}"
            for each in new
        ]
