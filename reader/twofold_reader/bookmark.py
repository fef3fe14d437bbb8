"""A place between two transactions of a reader, as a text that the reader's user stores."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from twofold_avro.records import Commit
from twofold_common.errors import Refused, UsageError

_FORM: Final = re.compile(r"1:([^:]*):([0-9]{1,19}):([0-9]{1,19}):([0-9]{1,20})")
WHOLE: Final = (1 << 64) - 1
"""Behind every position: all of the commit record has been read."""


@dataclass(frozen=True, slots=True)
class Bookmark:
    """What has been read: the commit records before this one, and of this one some transactions."""

    stream_id: str
    sequence: int
    offset: int
    """Of the commit record, in `<prefix>.commits`."""
    done: int
    """Where the commit of the last transaction begins that has been read."""

    def __str__(self) -> str:
        return f"1:{self.stream_id}:{self.sequence}:{self.offset}:{self.done}"

    @classmethod
    def parse(cls, text: str) -> Bookmark:
        if not (found := _FORM.fullmatch(text)):
            raise UsageError(
                f"{text!r} is no place to begin: give 'beginning', 'newest', a position such as '0/1A2B3C',"
                " or a bookmark that this version of twofold_reader made"
            )
        return cls(found[1], int(found[2]), int(found[3]), int(found[4]))

    def check(self, commit: Commit, prefix: str) -> None:
        """Refuse a commit record that is another than the bookmark's."""
        if (commit.stream_id, commit.sequence) != (self.stream_id, self.sequence):
            raise recreated(prefix, f"the bookmark is of commit record {self.sequence}, and its place has another one")


def recreated(prefix: str, what: str) -> Refused:
    """Return the refusal for a stream that is another than the one that was read."""
    return Refused(
        f"the topics of {prefix} were recreated: {what}",
        at_stake="all that the new topics say about rows that this reader already has: rows that are gone would stay",
        repair="drop what was made of these topics, with its bookmark, and start at 'beginning': the load that twofold init began brings all rows",
    )
