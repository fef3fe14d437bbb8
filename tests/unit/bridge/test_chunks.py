"""A chunk of a backfill takes its place between the source's transactions, and moves no
position.
"""

from __future__ import annotations

import pytest

from twofold.bridge import events, initial, step
from twofold.bridge.actions import CommitChunk, CommitMain, Report
from twofold.errors import RunEnded
from twofold_common.positions import Lsn

START = initial(applied_lsn=Lsn(100), confirmed_lsn=Lsn(100), sequence=7, pool=2)


def test_a_chunk_closes_the_batch_and_has_a_commit_of_its_own() -> None:
    state, _ = step(START, events.PlainRead(1, 3, Lsn(120)))
    state, done = step(state, events.ChunkDue())
    assert done == (CommitMain(8, Lsn(120), 1, 3), CommitChunk(9, Lsn(120)))
    state, _ = step(state, events.PlainRead(1, 1, Lsn(130)))
    state, reported = step(state, events.MainCommitted(Lsn(120)))
    assert reported == (Report(Lsn(130), Lsn(120)),)
    state, nothing = step(state, events.TurnFull())
    assert nothing == (), "the chunk's commit is on its way"
    state, done = step(state, events.MainCommitted(Lsn(120)))
    assert done == (CommitMain(10, Lsn(130), 1, 1),)


def test_chunks_of_an_idle_source_stay_where_the_stream_is() -> None:
    state, done = step(START, events.ChunkDue())
    assert done == (CommitChunk(8, Lsn(100)),)
    state, nothing = step(state, events.MainCommitted(Lsn(100)))
    assert (nothing, state.applied_lsn, state.unanswered) == ((), Lsn(100), ())


def test_a_chunk_never_comes_into_the_middle_of_a_transaction() -> None:
    state, _ = step(START, events.PlainUnfinished())
    with pytest.raises(RunEnded, match="half a transaction"):
        step(state, events.ChunkDue())


def test_a_chunk_never_comes_before_the_stream_has_caught_up() -> None:
    behind = initial(applied_lsn=Lsn(100), confirmed_lsn=Lsn(90), sequence=7, pool=2)
    with pytest.raises(RunEnded, match="before the stream had caught up"):
        step(behind, events.ChunkDue())
