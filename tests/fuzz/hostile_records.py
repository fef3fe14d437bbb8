"""Bytes for every reader of Kafka's records of the bookkeeping, and what may come of them.

A reader gives a value, or the refusal that names topic, partition and offset; or, where the schema
id is not the registry's, what is missing there. Nothing else leaves it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from twofold.cli.tail import change_line
from twofold.errors import SetupError, UnreadableRecord
from twofold.inspect.changes import ChangeReader
from twofold.kafka.decoding import Decoder, RecordPlace, read_command, read_text
from twofold.kafka.names import Names
from twofold_avro.records import (
    BranchInDoubt,
    Commit,
    Frontier,
    Pin,
    Prepared,
    PreparedOutcome,
    Progress,
    Range,
    Record,
    Seen,
)
from twofold_avro.schemas import canonical, fixed

PLACE = RecordPlace("bank.progress", 0, 4711)
_OUTCOME = PreparedOutcome("7:0/100", 7, "gid", 100, 200, 5, "global", "branch")
VALUES: tuple[Record, ...] = (
    Commit(
        5,
        "prepared",
        100,
        5,
        1,
        3,
        (_OUTCOME,),
        (Range("bank.public.t", 0, 1, 2, 2),),
        ("bank.public.t",),
        "s",
        ("bank.public.t",),
    ),
    Progress(100, 5, "74", 1, "bank", "bank", 8, 5),
    Pin("public", "t", 6, '"string"', 1, 2, "running", b"bound", 16384, None),
    Prepared(7, "gid", 100, 5, "open", 3, ("bank.public.t",), "global", "branch", 4),
    Frontier("g", 5, 100, (Seen("west", 4, "stream"),), (BranchInDoubt("global", "gid", 7),), 5),
)
IDS = {type(value): number for number, value in enumerate(VALUES, 1)}
ENVELOPE_ID = 93
"""The id of a schema whose fields have an envelope's names, and other types."""
_ENVELOPE = ("op", "source", "before", "after", "special", "unchanged", "message")
_OTHERS = {
    90: '"string"',
    ENVELOPE_ID: json.dumps(
        {
            "type": "record",
            "name": "E",
            "fields": [
                {"name": each, "type": [{"type": "map", "values": "string"}, "string", "long"]} for each in _ENVELOPE
            ],
        }
    ),
    91: '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]}',
    92: "[]",
}


class Registry:
    """The registry's schemas, those of other programs among them."""

    def schema(self, schema_id: int) -> str:
        for kind, number in IDS.items():
            if number == schema_id:
                return canonical(fixed(kind.schema_name))
            if number + 50 == schema_id:  # of an earlier version: one field less
                older = json.loads(canonical(fixed(kind.schema_name)))
                return json.dumps({**older, "fields": older["fields"][:-1]})
        if schema_id in _OTHERS:
            return _OTHERS[schema_id]
        raise SetupError(f"the registry does not have schema {schema_id}")


_decoder = Decoder(cast("Any", Registry()))
_changes = ChangeReader(cast("Any", Registry()), Names("bank", "me"))


def _read_change(message: bytes) -> object:
    """Read bytes as a row, and as a row's key, and make the line that `twofold tail` prints."""
    return change_line(_changes.read(PLACE, None, message)), change_line(_changes.read(PLACE, message, None))


def _reader(kind: type[Record]) -> Callable[[bytes], object]:
    return lambda message: _decoder.decode(kind, message, PLACE)


READERS: Mapping[str, Callable[[bytes], object]] = {
    **{kind.__name__.lower(): _reader(kind) for kind in IDS},
    "command": lambda message: read_command(message, PLACE),
    "text": lambda message: read_text(message, PLACE),
    "change": _read_change,
}


def judge(read: Callable[[bytes], object], message: bytes) -> bool:
    """Whether it was read. Any other end is an error of the reader, and leaves it."""
    try:
        read(message)
    except UnreadableRecord as error:
        said = error.what
    except SetupError as error:
        said = str(error)
    else:
        return True
    assert str(PLACE) in said, said
    return False


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


_PIECES = (varint(2 << 40), varint(1), b"\xff" * 12, b"", b"\0", b"garbage", b"\xff\xfe", varint((1 << 63) - 1))


def hostile(rng: random.Random) -> Iterator[bytes]:
    """Records with some bytes changed, cut, repeated or replaced, for ever."""
    while True:
        value = rng.choice(VALUES)
        schema_id = rng.choice([IDS[type(value)], IDS[type(value)] + 50, *_OTHERS, 4711])
        yield corrupted(value.to_bytes(schema_id), rng)


def corrupted(message: bytes, rng: random.Random) -> bytes:
    """The message with none to five changes."""
    changed = bytearray(message)
    for _ in range(rng.choice([0, 1, 1, 2, 5])):
        at = rng.randrange(len(changed) + 1)
        match rng.randrange(4):
            case 0 if at < len(changed):
                changed[at] ^= 1 << rng.randrange(8)
            case 1:
                del changed[at:]
            case 2:
                changed[at:at] = rng.choice(_PIECES)
            case _:
                changed[at : at + rng.randrange(9)] = rng.choice(_PIECES)
    return bytes(changed)
