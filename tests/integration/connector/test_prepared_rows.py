"""A prepare's rows: in Kafka at once, visible only by COMMIT PREPARED, never after ROLLBACK PREPARED."""

from __future__ import annotations

from connector_topics import UNCOMMITTED, gid_of
from fix_connector import Maker


def insert(key: int, note: str = "") -> str:
    return f"INSERT INTO account VALUES ({key}, 1, '{note}')"


def test_rows_are_in_kafka_at_prepare_and_visible_at_commit_prepared(connector: Maker) -> None:
    here = connector()
    here.start()
    all_rows, visible = here.tail("account", isolation=UNCOMMITTED), here.tail("account")
    here.prepare("g1", insert(1), insert(2))
    assert all_rows.wait_for(lambda s: gid_of(s) == "g1")
    here.prepare("g2", insert(3))
    assert all_rows.wait_for(lambda s: gid_of(s) == "g2")
    visible.to_end()
    assert visible.seen == []
    here.sql("ROLLBACK PREPARED 'g2'", "COMMIT PREPARED 'g1'")
    assert visible.wait_for(lambda s: gid_of(s) == "g1")
    topics = here.check()
    assert [s for s in topics.rows if gid_of(s) == "g2"] == []
    assert [c.value["kind"] for c in topics.commits] == ["prepared", "batch"]
