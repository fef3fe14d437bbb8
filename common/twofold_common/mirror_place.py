"""How far a mirror has come, as it writes beside its offset in `<prefix>.mirror`. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass

from twofold_common.errors import SetupError
from twofold_common.positions import Lsn


@dataclass(frozen=True, slots=True)
class MirrorPlace:
    """The mirror's last published cut, and when the mirror wrote of it."""

    sequence: int
    applied_lsn: Lsn
    committed_us: int
    told_at: float | None = None
    """By the clock of its machine. None: a mirror of a version that tells only of its cuts."""
    ended: bool = False
    """Whether the mirror said that it ends."""
    of_group: bool = False
    """Whether its cuts are those of a source group: global cuts."""
    stream_id: str = ""
    """The stream whose commit records it applies: topics that are made again are another one."""

    def reads_former(self, stream_id: str) -> bool:
        """Whether its numbers and positions are those of topics that were made again since."""
        return bool(self.stream_id and stream_id) and self.stream_id != stream_id


def parse_place(text: str | None, group: str) -> MirrorPlace:
    """Read a mirror's JSON; anything may stand behind it, as librdkafka ends it without NUL."""
    try:
        said, _ = json.JSONDecoder().raw_decode(text or "")
        told_ms = said.get("told_ms")
        return MirrorPlace(
            int(said["sequence"]),
            Lsn(int(said["applied_lsn"])),
            int(said["committed_us"]),
            None if told_ms is None else int(told_ms) / 1000,
            bool(said.get("ended", False)),
            bool(said.get("of_group", False)),
            str(said.get("stream_id", "")),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SetupError(
            f"the consumer group {group} has an offset that no mirror wrote ({(text or '')[:60]!r}); another program wrote"
            " it, and the mirror replaces it with its next cut"
        ) from error
