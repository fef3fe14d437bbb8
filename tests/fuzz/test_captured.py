"""The short form of fuzzing: every cut, every flipped bit and some thousands of worse things done
to messages that servers sent.
"""

from __future__ import annotations

import random

import pytest

from fuzz.captured import captured, check

MESSAGES = captured()
KINDS_OUTSIDE = set(b"BCbPKrScApORYIUDTM")
KINDS_INSIDE = set(b"ERYIUDTM")


def test_every_kind_was_captured() -> None:
    assert {payload[0] for in_stream, payload in MESSAGES if not in_stream} == KINDS_OUTSIDE
    assert {payload[0] for in_stream, payload in MESSAGES if in_stream} >= KINDS_INSIDE
    assert all(check(payload, in_stream=in_stream) for in_stream, payload in MESSAGES)


def test_a_cut_message_is_none() -> None:
    for in_stream, payload in MESSAGES:
        for size in range(len(payload)):
            shorter_form = payload[:1] == b"A" and size == 9
            assert check(payload[:size], in_stream=in_stream) == shorter_form, (payload, size)


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow), 5])
def test_a_flipped_bit_is_found_or_means_what_it_says(step: int) -> None:
    for number, (in_stream, payload) in enumerate(MESSAGES):
        whole = int.from_bytes(payload)
        for bit in range(number % step, 8 * len(payload), step):
            check((whole ^ 1 << bit).to_bytes(len(payload)), in_stream=in_stream)


@pytest.mark.parametrize("seed", range(2))
def test_messages_spliced_and_scrambled(seed: int) -> None:
    """Pieces of two messages joined, bytes changed, doubled and left out, read in and outside of a
    stream block.
    """
    chance = random.Random(seed)
    for _ in range(20_000):
        (_, one), (_, other) = chance.choice(MESSAGES), chance.choice(MESSAGES)
        mixed = bytearray(one[: chance.randint(0, len(one))] + other[chance.randint(0, len(other)) :])
        for _ in range(chance.randint(0, 4)):
            at = chance.randint(0, len(mixed))
            mixed[at : at + chance.randint(0, 3)] = chance.choice([b"", b"\0", b"\xff" * 4, chance.randbytes(2)])
        check(bytes(mixed), in_stream=chance.random() < 0.5)
