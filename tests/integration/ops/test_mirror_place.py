"""How far a mirror says that it is, read from real groups: every time, whatever the length of what
it says, and whatever the client leaves behind it.
"""

from __future__ import annotations

import json

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from fixtures.connector import Installation, Maker
from helpers.connector.mirror_place import write_place
from twofold.errors import SetupError
from twofold.watch.mirror_view import MirrorView
from twofold_common.mirror_place import MirrorPlace
from twofold_common.positions import Lsn


@pytest.fixture
def here(connector: Maker) -> Installation:
    made = connector(init=False)
    topic = f"{made.prefix}.commits"
    admin = AdminClient({"bootstrap.servers": made.reader.bootstrap})
    admin.create_topics([NewTopic(topic, 1)])[topic].result(20)
    return made


def test_a_place_of_any_length_is_read_every_time(here: Installation) -> None:
    config = here.config
    assert MirrorView(config).read() is None, "nobody has written"
    for digits in range(1, 18):
        place = {"sequence": 10**digits, "applied_lsn": 27_263_856, "committed_us": 1_700_000_000_000_000}
        write_place(here, json.dumps(place))
        expected = MirrorPlace(10**digits, Lsn(27_263_856), 1_700_000_000_000_000)
        view = MirrorView(config)
        assert [view.read() for _ in range(3)] == [expected] * 3, digits


@pytest.mark.parametrize("words", ["", "another's words", '{"sequence": 1}'])
def test_a_group_that_another_program_wrote_is_said(here: Installation, words: str) -> None:
    write_place(here, words)
    with pytest.raises(SetupError, match=f"group {here.prefix}.mirror has an offset that no mirror wrote"):
        MirrorView(here.config).read()
