"""Which row a command names, and until when a topic lacks it, by a plain history of one topic."""

from __future__ import annotations

import random

import pytest

from twofold.lives.skipped_rows import (
    NOTHING_MISSING,
    MissingRow,
    MissingRows,
    SkipCommand,
    SkipCommands,
    name_by_bytes,
    name_by_key,
    name_by_size,
)

KEYS = b"a", b"b", b"c", None


def test_a_name_belongs_to_a_key_at_a_position() -> None:
    names = {name_by_key(lsn, key) for lsn in range(50) for key in (b"a", b"b")}
    assert len(names) == 100
    assert {len(name) for name in names} == {8}
    assert name_by_bytes(1, b"a") != name_by_key(1, b"a")
    assert name_by_size(12) == "bytes-12"


def test_a_command_names_one_row() -> None:
    command = SkipCommand("t", 7, "x")
    commands = SkipCommands([command, SkipCommand("u", 9, "y")], lacking=["v"])
    assert commands.find("t", 7, ["z", "x"]) == command
    assert commands.find("t", 7, ["y"]) is None
    assert commands.find("u", 7, ["x"]) is None
    assert commands.find("t", 9, ["x"]) is None
    assert commands.last == 9
    assert commands.topics == {"t", "u", "v"}
    assert SkipCommands().last < 0


def lacking(rows: MissingRows) -> set[MissingRow]:
    return set(rows.rows)


@pytest.mark.parametrize("seed", range(200))
def test_a_topic_lacks_what_readers_lack(seed: int) -> None:
    """Readers fold the topic by key; they lack a key if its row is not the source's."""
    rng = random.Random(seed)
    missing, source, readers = NOTHING_MISSING, dict[bytes, tuple[int, int]](), dict[bytes, tuple[int, int]]()
    keyless: set[int] = set()
    for lsn in range(1, 40):
        key, what = (
            rng.choice(KEYS),
            rng.choices(("whole", "partial", "delete", "truncate", "reload"), (6, 4, 3, 1, 1))[0],
        )
        skipped = rng.random() < 0.3
        if what == "truncate":
            source, readers, keyless = {}, {}, set()
            missing = missing.truncate(lsn)
        elif what == "reload":
            readers, keyless = dict(source), set()
            missing = missing.truncate(None)
        elif key is None:
            if skipped:
                keyless.add(lsn)
                missing = missing.skip(MissingRow(lsn, None))
            else:
                missing = missing.publish(lsn, None, partial=False)
        elif key not in source and what in {"partial", "delete"}:
            continue
        else:
            if what == "delete":
                del source[key]
            else:  # a row has a small value, and a large one that an update may leave out
                source[key] = (lsn, lsn if what == "whole" else source[key][1])
            if skipped:
                missing = missing.skip(MissingRow(lsn, key))
                continue
            if what == "delete":
                readers.pop(key, None)
            elif what == "whole":
                readers[key] = source[key]
            else:
                readers[key] = (lsn, readers.get(key, (0, 0))[1])
            missing = missing.publish(lsn, key, partial=what == "partial")
        wrong = {each for each in {*source, *readers} if source.get(each) != readers.get(each)}
        known = {row.key for row in missing.rows if row.key is not None}
        assert wrong <= known
        assert missing.keys == known
        assert {row.lsn for row in missing.rows if row.key is None} == keyless
        whole_since = [row for row in missing.rows if row.key is not None and row.lsn > lsn]
        assert not whole_since


def test_a_row_of_an_earlier_position_brings_nothing() -> None:
    missing = NOTHING_MISSING.skip(MissingRow(5, b"a"))
    assert missing.publish(4, b"a", partial=False) == missing
    assert missing.truncate(4) == missing
    assert missing.publish(6, b"a", partial=False) == NOTHING_MISSING
    assert missing.skip(MissingRow(3, b"a")) == missing
    assert missing.skip(MissingRow(7, b"a")) == NOTHING_MISSING.skip(MissingRow(7, b"a"))


def test_a_delete_brings_what_a_skipped_row_lacks_and_no_more_is_said_than_needed() -> None:
    missing = NOTHING_MISSING.skip(MissingRow(5, b"a")).skip(MissingRow(6, b"b"))
    assert lacking(missing.publish(7, b"a", partial=False)) == {MissingRow(6, b"b")}
    assert lacking(missing.publish(7, b"a", partial=True)) == lacking(missing)
