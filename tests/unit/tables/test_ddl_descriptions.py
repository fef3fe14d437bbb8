"""What messages of the event triggers tell counts where the stream is, and nowhere else."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from twofold.descriptions.ddl_message import TEXT_MAX, DdlMessage, parse_ddl_message
from twofold.descriptions.staleness import NeedsReload
from twofold.source.messages import Relation, RelationColumn
from twofold.tables.ddl_descriptions import DdlDescriptions
from twofold_common.positions import PreparedIdentity

RELATION = Relation(7, "public", "t", "full", (RelationColumn("id", 23, -1, True), RelationColumn("v", 25, -1, True)))


def column(number: int, name: str, kind: int) -> dict[str, Any]:
    return {"number": number, "name": name, "type": kind, "modifier": -1, "generated": "", "default": None, "row": 5}


def key(columns: list[int], *, usable: bool) -> dict[str, Any]:
    return {"index": 9, "constraint": 0, "usable": usable, "primary": False, "replica_identity": False, "columns": columns}  # fmt: skip


TABLE: dict[str, Any] = {
    "major": 15, "oid": 7, "owner": 10, "kind": "r", "replica_identity": "f", "row": 5, "type_row": 5, "toast": 0,
    "files": "f", "altered": "a", "schema": "public", "name": "t", "persistence": "p",
    "columns": [column(1, "id", 23), column(3, "v", 25)],
    "keys": [key([3], usable=False), key([1], usable=True)],
    "attributes": [[1, 1, "a", 5]], "labels": [[1, "x", 5]], "partitions": [[8, True, 5]], "links": [5],
    "publications": [
        {
            "name": "p", "oid": 3, "row": 5, "owner": 10, "operations": "iudt", "via_root": False, "generated": "n",
            "members": [4], "by_parent": False, "filter": None, "columns": None,
        }
    ],
}  # fmt: skip
IDENTITY = PreparedIdentity(9, "gid")


def told(content: object) -> DdlMessage | None:
    return parse_ddl_message(json.dumps(content).encode(), "p")


def test_a_message_tells_numbers_and_usable_keys() -> None:
    found = told({"command": "ALTER TABLE", "table": TABLE})
    assert found is not None
    assert (found.schema, found.name, found.lacking) == ("public", "t", None)
    assert [column.number for column in found.described.columns] == [1, 3]
    assert found.described.usable_keys == (frozenset({"id"}),)
    assert found.described.publication is not None


@pytest.mark.parametrize(
    ("kind", "by_parent", "via_root", "is_sent"),
    [("r", True, False, True), ("r", True, True, False), ("r", False, True, True), ("p", False, False, False), ("p", False, True, True), ("p", True, True, False)],
)  # fmt: skip
def test_of_a_root_and_its_partitions_a_publication_has_those_that_it_sends(
    kind: str, by_parent: bool, via_root: bool, is_sent: bool
) -> None:
    published = TABLE["publications"][0] | {"via_root": via_root, "by_parent": by_parent}
    found = told({"table": TABLE | {"kind": kind, "publications": [published]}})
    assert found is not None
    assert (found.described.publication is not None) == is_sent


def spoilt(place: str, value: object) -> dict[str, Any]:
    """A message with another value in this place."""
    table = json.loads(json.dumps(TABLE))
    at, *names = place.split(".")
    where = table
    for name in names:
        where = where[int(at) if at.isdigit() else at]
        at = name
    where[int(at) if at.isdigit() else at] = value
    return {"table": table}


@pytest.mark.parametrize(
    "content",
    [
        {"command": "ALTER TABLE", "failed": "40001"}, [], "x", {"table": None},
        spoilt("oid", "7"), spoilt("oid", True), spoilt("columns.0.row", None), spoilt("columns.0.name", "\ud800"),
        spoilt("keys.1.columns", [9]), spoilt("keys.1.columns", ["id"]), spoilt("attributes", [[1, 1]]),
        spoilt("labels", [["x", 1, 5]]), spoilt("partitions", 3), spoilt("publications.0.members", ["m", 1]),
        spoilt("publications.0.operations", 1), spoilt("columns.1.name", "v" * TEXT_MAX), spoilt("schema", 1),
    ],
)  # fmt: skip
def test_what_is_no_description_tells_nothing(content: object) -> None:
    """Anybody may write a message, and a pin keeps what it tells."""
    assert told(content) is None
    assert parse_ddl_message(b"\xff{", "p") is None


def test_what_was_changed_and_changed_back_in_one_transaction_is_known() -> None:
    before, renamed, back = told({"table": TABLE}), told(spoilt("columns.1.name", "w")), told({"table": TABLE})
    assert before
    assert renamed
    assert back
    assert renamed.behind({}).lacking is None
    assert isinstance(back.behind({7: renamed}).lacking, NeedsReload)
    assert isinstance(back.behind({7: before.behind({7: renamed})}).lacking, NeedsReload)
    assert back.behind({7: before}).lacking is None


def test_what_a_transaction_tells_counts_for_others_once_it_is_committed() -> None:
    here, table = DdlDescriptions("p"), told({"table": TABLE})
    assert table is not None
    assert here.find(RELATION, {}) is None
    assert here.find(RELATION, {7: table}) == table.described
    for committed in (False, True):
        here.prepare(IDENTITY, {7: table})
        assert here.find(RELATION, {}) is None
        here.resolve(IDENTITY, committed=committed)
        assert (here.find(RELATION, {}) == table.described) is committed
    here.resolve(IDENTITY, committed=False)
    assert here.find(RELATION, {}) == table.described


def test_a_relation_that_is_another_one_is_not_told_of() -> None:
    """A later command had no message."""
    here, table = DdlDescriptions("p"), told({"table": TABLE})
    assert table is not None
    here.note({7: table})
    renamed = replace(RELATION, columns=(RELATION.columns[0], RelationColumn("w", 25, -1, True)))
    for other in (renamed, replace(RELATION, oid=8), replace(RELATION, replica_identity="default")):
        assert here.find(other, {}) is None
    assert here.find(replace(RELATION, columns=RELATION.columns[:1]), {}) == table.described  # v is not published


def test_a_run_begins_with_what_the_pins_keep() -> None:
    table, without_key = told({"table": TABLE}), told(spoilt("keys", []))
    assert table
    assert without_key
    here = DdlDescriptions("p", [table.described])
    assert here.find(RELATION, {}) == table.described
    here.look_again({7: without_key.described, 8: replace(without_key.described, oid=8)})
    assert here.find(RELATION, {}) == without_key.described
    assert here.find(replace(RELATION, oid=8), {}) is None


def test_whose_partition_a_table_is_counts_where_the_stream_is() -> None:
    """By the transaction's own messages, by committed ones, and by what the pins keep."""
    sub_root, partition = told({"table": TABLE}), replace(RELATION, oid=8)
    assert sub_root
    root = replace(sub_root.described, oid=6, partitions=frozenset({(7, True, 5), (8, True, 5)}))
    here = DdlDescriptions("p", [root, sub_root.described], has_messages=False)
    assert here.above(partition, {}) == [6, 7]
    assert here.find(RELATION, {}) is None
    detached = {6: replace(sub_root, described=replace(root, partitions=frozenset()))}
    assert here.above(partition, detached) == [7]
    assert here.above(partition, {}) == [6, 7]
    here.note(detached)
    assert here.above(partition, {}) == [7]
    here.look_again({6: root, 7: replace(sub_root.described, partitions=frozenset())})
    assert here.above(partition, {}) == [6]
