"""What messages of the event triggers tell counts where the stream is, and nowhere else."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from twofold.descriptions.told_table import ToldTable, told_table
from twofold.runner.told_tables import ToldTables
from twofold.source.messages import Relation, RelationColumn
from twofold_common.positions import PreparedIdentity

RELATION = Relation(7, "public", "t", "full", (RelationColumn("id", 23, -1, True), RelationColumn("v", 25, -1, True)))
TABLE: dict[str, Any] = {
    "oid": 7, "replica_identity": "f",
    "columns": [{"number": 1, "name": "id", "type": 23, "row": 5}, {"number": 3, "name": "v", "type": 25, "row": 6}],
    "keys": [{"columns": [3], "usable": False}, {"columns": [1], "usable": True}],
}  # fmt: skip
IDENTITY = PreparedIdentity(9, "gid")


def told(content: object) -> ToldTable | None:
    return told_table(json.dumps(content).encode())


def test_a_message_tells_numbers_and_usable_keys() -> None:
    found = told({"command": "ALTER TABLE", "table": TABLE})
    assert found is not None
    assert [column.number for column in found.columns] == [1, 3]
    assert found.keys == (frozenset({"id"}),)


@pytest.mark.parametrize(
    "content", [{"command": "ALTER TABLE", "failed": "40001"}, [], "x", {"table": None}, {"table": {**TABLE, "keys": [{"usable": True, "columns": [9]}]}}]
)  # fmt: skip
def test_what_is_no_description_tells_nothing(content: object) -> None:
    """Anybody may write a message."""
    assert told(content) is None
    assert told_table(b"\xff{") is None


def test_what_a_transaction_tells_counts_for_others_once_it_is_committed() -> None:
    here, table = ToldTables(), told({"table": TABLE})
    assert table is not None
    assert here.find(RELATION, {}) is None
    assert here.find(RELATION, {7: table}) is table
    for committed in (False, True):
        here.prepare(IDENTITY, {7: table})
        assert here.find(RELATION, {}) is None
        here.resolve(IDENTITY, committed=committed)
        assert (here.find(RELATION, {}) is table) is committed
    here.resolve(IDENTITY, committed=False)
    assert here.find(RELATION, {}) is table


def test_a_relation_that_is_another_one_is_not_told_of() -> None:
    """A later command had no message."""
    here, table = ToldTables(), told({"table": TABLE})
    assert table is not None
    here.note({7: table})
    renamed = replace(RELATION, columns=(RELATION.columns[0], RelationColumn("w", 25, -1, True)))
    for other in (renamed, replace(RELATION, oid=8), replace(RELATION, replica_identity="default")):
        assert here.find(other, {}) is None
    assert here.find(replace(RELATION, columns=RELATION.columns[:1]), {}) is table  # v is not published
