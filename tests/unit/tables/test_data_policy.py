"""The data policy of a table's shape: which rule holds, and what cannot hold."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from twofold.config import ColumnRule, load
from twofold.descriptions.description import Description
from twofold.descriptions.hidden_columns import CatalogColumn, CatalogTable, Hidden, HiddenColumns, Located
from twofold.errors import Refused, UsageError
from twofold.source.catalog import Catalog
from twofold.source.messages import Relation, RelationColumn
from twofold.tables.column_policy import ColumnPolicy
from twofold.tables.data_policy import DataPolicy
from twofold.tables.pins import Pins
from twofold.tables.table_lives import TableLives
from twofold_avro.records import Pin
from twofold_avro.schemas import envelope_schema, key_schema
from twofold_avro.shapes import ColumnShape, TableShape, TypeShape

WAS = Description(15, 6, 10, "p", "d", 500, 500, 0, "f", "a", (), (), frozenset(), frozenset(), frozenset(), (), None)
EXAMPLE = Path(__file__).parents[3] / "docs/reference/twofold.toml"


def type_(name: str) -> TypeShape:
    return TypeShape(0, "pg_catalog", name)


EMAIL = TypeShape(1, "public", "email", "domain", element=type_("text"))
SHAPE = TableShape(
    1,
    "public",
    "t",
    (
        ColumnShape("id", type_("int8"), in_key=True, in_identity=True),
        ColumnShape("email", EMAIL),
        ColumnShape("amount", type_("numeric")),
    ),
)


def apply(monkeypatch: pytest.MonkeyPatch, *rules: tuple[str, str], loads: bool = True) -> TableShape:
    columns = [{"column": column, "action": action} for column, action in rules]
    monkeypatch.setenv("TWOFOLD_POLICY__COLUMNS", json.dumps(columns))
    monkeypatch.setenv("TWOFOLD_SOURCE__BACKFILL", str(loads).lower())
    return DataPolicy(load(EXAMPLE)).apply(SHAPE)


def test_policy_is_that_of_the_first_rule_that_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    found = apply(monkeypatch, ("public.t.amount", "keep"), ("other.*.email", "drop"), ("public.*.[ae]m*", "hash"))
    assert found.policy == {"email": "hash"}
    assert [c.type.name for c in found.columns] == ["int8", "text", "numeric"]
    assert apply(monkeypatch, ("public.*.email", "redact")).policy == {"email": "redact"}
    assert apply(monkeypatch) == SHAPE


@pytest.mark.parametrize(
    ("column", "action", "said"),
    [
        ("id", "drop", "can only be hashed"),
        ("id", "null", "can only be hashed"),
        ("id", "redact", "can only be hashed"),
        ("id", "hash", "cannot be loaded in the order of a hash"),
        ("amount", "redact", "type numeric, which has no text to redact"),
    ],
)
def test_policy_that_cannot_hold_is_refused(
    monkeypatch: pytest.MonkeyPatch, column: str, action: str, said: str
) -> None:
    with pytest.raises(Refused, match=said) as refused:
        apply(monkeypatch, (f"public.t.{column}", action))
    assert "nothing was written" in refused.value.at_stake


def test_policy_hashes_a_key_that_is_never_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    schemas = []
    for letter in (b"k", b"l"):
        (tmp_path / "key").write_bytes(letter * 32)
        monkeypatch.setenv("TWOFOLD_POLICY__KEY_FILE", str(tmp_path / "key"))
        shape = apply(monkeypatch, ("public.t.id", "hash"), loads=False)
        assert shape.policy == {"id": "hash"}
        schemas.append(key_schema(shape, "p"))
    assert schemas[0] != schemas[1], "rows of one message key would have two hashes"


def test_policy_of_a_column_names_schema_and_table(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"must be schema\.table\.column"):
        apply(monkeypatch, ("t.email", "hash"))


def test_policy_needs_a_key_that_is_long_enough(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TWOFOLD_POLICY__COLUMNS", '[{"column": "public.t.email", "action": "hash"}]')
    with pytest.raises(UsageError, match=r"policy\.key_file is not set; .*openssl rand"):
        _ = load(EXAMPLE).policy.hash_key
    file = tmp_path / "key"
    monkeypatch.setenv("TWOFOLD_POLICY__KEY_FILE", str(file))
    with pytest.raises(UsageError, match="cannot be read"):
        _ = load(EXAMPLE).policy.hash_key
    file.write_bytes(b"k" * 31 + b"\n")
    with pytest.raises(UsageError, match="has 31 bytes, fewer than 32"):
        _ = load(EXAMPLE).policy.hash_key
    file.write_bytes(b"k" * 32 + b"\n")
    assert load(EXAMPLE).policy.hash_key == b"k" * 32
    monkeypatch.setenv("TWOFOLD_POLICY__COLUMNS", '[{"column": "public.t.email", "action": "drop"}]')
    assert load(EXAMPLE).policy.hash_key == b""


def exposed(monkeypatch: pytest.MonkeyPatch, new: str, *rules: tuple[str, str]) -> None:
    """What becomes of a table whose hashed email is gone, and that has a new column."""
    before = envelope_schema(apply(monkeypatch, ("public.t.email", "hash")), "p")
    columns = [{"column": column, "action": action} for column, action in rules]
    monkeypatch.setenv("TWOFOLD_POLICY__COLUMNS", json.dumps(columns))
    policy = DataPolicy(load(EXAMPLE))
    later = replace(SHAPE, columns=(SHAPE.columns[0], ColumnShape(new, EMAIL), SHAPE.columns[2]))
    policy.require_rules(policy.apply(later), before)


def test_policy_refuses_a_hidden_column_under_a_name_without_a_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = ("public.t.email", "hash")
    with pytest.raises(Refused, match="has lost email, which the data policy hides, and got mail") as refused:
        exposed(monkeypatch, "mail", rule)
    assert '"public.t.mail"' in refused.value.repair
    for action in ("hash", "drop", "keep"):
        exposed(monkeypatch, "mail", rule, ("public.t.mail", action))
    exposed(monkeypatch, "email", rule)


def test_policy_refuses_a_hidden_column_whose_rule_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of a table that has another name now, and whose earlier rows are still to come."""
    with pytest.raises(Refused, match=r"has hidden email of public\.t so far, and has no rule") as refused:
        exposed(monkeypatch, "email")
    assert '{ column = "public.t.email", action = "hash" }' in refused.value.repair
    exposed(monkeypatch, "email", ("public.t.email", "keep"))


def test_policy_asks_for_no_rule_where_nothing_hidden_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = DataPolicy(load(EXAMPLE))
    rules.require_rules(SHAPE, envelope_schema(replace(SHAPE, columns=SHAPE.columns[:2]), "p"))  # one is new
    rules.require_rules(replace(SHAPE, columns=SHAPE.columns[:2]), envelope_schema(SHAPE, "p"))  # one is gone


def renamed(monkeypatch: pytest.MonkeyPatch, columns: tuple[ColumnShape, ...], *rules: tuple[str, str]) -> None:
    """What becomes of a table with a hashed email and a dropped amount that is public.u now."""
    before = envelope_schema(apply(monkeypatch, ("public.t.email", "hash"), ("public.t.amount", "drop")), "p")
    monkeypatch.setenv("TWOFOLD_POLICY__COLUMNS", json.dumps([{"column": c, "action": a} for c, a in rules]))
    policy = DataPolicy(load(EXAMPLE))
    policy.require_rules(policy.apply(replace(SHAPE, table="u", columns=columns)), before, "public.t")


def test_policy_refuses_a_table_whose_hidden_columns_have_no_rule_under_its_new_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old = ("public.t.email", "hash"), ("public.t.amount", "drop")
    with pytest.raises(Refused, match=r"public\.u was public\.t, .* no rule for amount, email of public\.u") as refused:
        renamed(monkeypatch, SHAPE.columns, *old)
    lines = '{ column = "public.u.amount", action = "drop" }, { column = "public.u.email", action = "hash" }'
    assert lines in refused.value.repair
    with pytest.raises(Refused, match=r"no rule for email of public\.u"):
        renamed(monkeypatch, SHAPE.columns, *old, ("public.u.amount", "keep"))
    renamed(monkeypatch, SHAPE.columns, *old, ("public.u.amount", "keep"), ("public.u.email", "hash"))
    renamed(monkeypatch, SHAPE.columns, ("public.*.email", "hash"), ("public.*.amount", "drop"))
    renamed(monkeypatch, SHAPE.columns[:1], *old)


def test_policy_refuses_a_table_of_which_a_hidden_column_was_renamed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = (SHAPE.columns[0], ColumnShape("mail", EMAIL), SHAPE.columns[2])
    with pytest.raises(Refused, match=r"no rule for mail of public\.u"):
        renamed(monkeypatch, columns, ("public.*.email", "hash"), ("public.*.amount", "drop"))
    renamed(monkeypatch, columns, ("public.*.mail", "hash"), ("public.*.amount", "drop"))


@pytest.mark.parametrize("name", ['ma"il[1]\n', "mail[x]", "ma\\il*", "\u202email?'", "mail\U000e0001"])
def test_a_line_that_is_offered_names_that_column_alone(name: str) -> None:
    """It is put into the configuration as it is printed."""
    columns = (SHAPE.columns[0], ColumnShape(name, type_("text"), policy="hash"), SHAPE.columns[2])
    before = envelope_schema(replace(SHAPE, columns=columns), "p")
    shown = replace(SHAPE, columns=(columns[0], replace(columns[1], policy=None), columns[2]))
    with pytest.raises(Refused) as refused:
        DataPolicy(load(EXAMPLE)).require_rules(shown, before)
    line = refused.value.repair.removeprefix("put ").partition(" into policy.columns")[0]
    assert line.isprintable()
    rule = ColumnRule(**tomllib.loads(f"rule = {line}")["rule"])
    assert rule.matches(f"public.t.{name}")
    assert not rule.matches("public.t.mailx")
    assert rule.action == "hash"


def test_policy_is_that_of_the_name_under_which_a_column_was_first_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def hidden(*rules: tuple[str, str], certain: bool = True) -> dict[str, str]:
        columns = [{"column": column, "action": action} for column, action in rules]
        monkeypatch.setenv("TWOFOLD_POLICY__COLUMNS", json.dumps(columns))
        renamed = replace(SHAPE, columns=(SHAPE.columns[0], ColumnShape("mail", EMAIL), ColumnShape("email", EMAIL)))
        found = {1: "public.t.email"}
        located = Located(found, {}, (1, 2, 3)) if certain else Located({}, found, None)
        return dict(DataPolicy(load(EXAMPLE)).apply(renamed, located).policy)

    rule = ("public.t.email", "hash")
    assert hidden(rule) == {"mail": "hash", "email": "hash"}
    assert hidden(rule, ("public.t.mail", "keep")) == {"mail": "hash", "email": "hash"}
    assert hidden(("public.t.email", "keep"), ("public.t.mail", "null")) == {"mail": "null"}
    assert hidden(("public.t.mail", "null")) == {"mail": "null"}
    with pytest.raises(Refused, match=r"has hidden mail of public\.t so far, and has no rule for it any more"):
        hidden(("public.t.other", "hash"))
    # What may be it is left out, unless a rule speaks of it.
    assert hidden(rule, certain=False) == {"mail": "drop", "email": "hash"}
    assert hidden(rule, ("public.t.mail", "keep"), certain=False) == {"email": "hash"}


def test_policy_shows_again_what_was_left_out_in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the numbers are known; without them, a column that was hidden needs a rule."""
    monkeypatch.setenv("TWOFOLD_POLICY__COLUMNS", '[{"column": "public.t.email", "action": "null"}]')
    policy = DataPolicy(load(EXAMPLE))
    before = envelope_schema(policy.apply(SHAPE, Located({}, {2: "public.t.email"}, None)), "p")
    later = policy.apply(SHAPE, Located({1: "public.t.email"}, {}, (1, 2, 3), are_others_shown=True))
    assert later.policy == {"email": "null"}
    policy.require_rules(later, before)
    with pytest.raises(Refused, match="has hidden amount of"):
        policy.require_rules(policy.apply(SHAPE), before)


class ColumnsNow(Catalog):
    """The catalog: tables of two columns, the latter with the number 2; one has its tree."""

    def __init__(
        self,
        above: tuple[tuple[str, str], ...] = (),
        *,
        published: bool = True,
        name: str = "email",
        tree: dict[int, bool] | None = None,
    ) -> None:
        self.now = CatalogTable((CatalogColumn(1, "id", 20, 7), CatalogColumn(2, name, 25, 7)), frozenset(), above)
        self._published = published
        self._tree = tree or {7: True}
        self.is_there = True

    def columns_now(self, oid: int) -> CatalogTable | None:
        return self.now if oid == LEAF.oid and self.is_there else None

    def published(self, publication: str, schema: str, table: str) -> Relation | None:
        return LEAF if self._published else None

    def tree(self, oid: int) -> dict[int, bool]:
        return self._tree

    def column_names(self, columns: Iterable[tuple[int, int]]) -> dict[tuple[int, int], str]:
        """Other tables of the tree have the leaf's second column as their third."""
        return {each: self.now.columns[1].name for each in columns if each in {(7, 2), (6, 3), (8, 3)}}


LEAF = Relation(
    7, "public", "leaf", "default", (RelationColumn("id", 20, -1, True), RelationColumn("email", 25, -1, False))
)
LEAF_SHAPE = replace(SHAPE, oid=7, table="leaf", columns=SHAPE.columns[:2])


@pytest.mark.parametrize(
    ("catalog", "pins"),
    [
        (ColumnsNow((("public", "middle"), ("public", "root"))), {}),
        (ColumnsNow(), {"p.public.root": Pin("public", "root", 1, stored="root")}),
        (ColumnsNow(published=False), {}),
    ],
    ids=["attached", "detached", "neither published nor pinned"],
)
def test_policy_of_a_root_holds_for_its_partitions(
    monkeypatch: pytest.MonkeyPatch, catalog: ColumnsNow, pins: dict[str, Pin]
) -> None:
    """Also for one that was a partition at the last look, and for one of which nothing is known."""
    monkeypatch.setenv("TWOFOLD_POLICY__COLUMNS", '[{"column": "public.root.email", "action": "null"}]')
    if pins:
        was = replace(WAS, partitions=frozenset({(7, True, 5)})).to_text()
        pins = {topic: replace(pin, stored=was) for topic, pin in pins.items()}
    policy = ColumnPolicy(DataPolicy(load(EXAMPLE)), catalog, "p")
    shape, hidden = policy.hide(LEAF_SHAPE, LEAF, "p.public.leaf", pins)
    assert shape.policy == {"email": "null"}
    assert hidden is not None
    assert [each.number for each in hidden.columns] == [2]
    # Later it has neither a root nor its name.
    pins = {"p.public.leaf": Pin("public", "leaf", 1, relation=7, hidden=hidden.to_text())}
    later = ColumnPolicy(DataPolicy(load(EXAMPLE)), ColumnsNow(), "p")
    for name, topic in (("leaf", "p.public.leaf"), ("other", "p.public.other")):
        shape, _ = later.hide(replace(LEAF_SHAPE, table=name), replace(LEAF, table=name), topic, pins)
        assert shape.policy == {"email": "null"}


RENAMED = replace(LEAF, columns=(LEAF.columns[0], replace(LEAF.columns[1], name="mail")))
RENAMED_SHAPE = replace(LEAF_SHAPE, columns=(SHAPE.columns[0], replace(SHAPE.columns[1], name="mail")))


def pinned(table: str, oid: int, rule: str, stored: str | None = None) -> dict[str, Pin]:
    hidden = HiddenColumns((Hidden(3, rule, 7),), ("id", "email")).to_text()
    return {f"p.public.{table}": Pin("public", table, 1, relation=oid, hidden=hidden, stored=stored)}


ROOT_RULE, BESIDE_RULE = "public.root.email", "public.beside.email"
WAS_ROOT = replace(WAS, partitions=frozenset({(7, True, 5)})).to_text()


@pytest.mark.parametrize(
    ("rule", "tree", "pins", "hidden"),
    [
        (ROOT_RULE, {7: True, 6: True}, pinned("root", 6, ROOT_RULE), True),
        (ROOT_RULE, {7: True, 6: True}, pinned("trunk", 6, ROOT_RULE), True),
        (ROOT_RULE, {7: True, 5: True, 8: False}, pinned("beside", 8, ROOT_RULE), True),
        ("public.*.email", {7: True, 5: True, 8: False}, pinned("beside", 8, BESIDE_RULE), True),
        (ROOT_RULE, {7: True}, pinned("root", 6, ROOT_RULE, stored=WAS_ROOT), True),
        (BESIDE_RULE, {7: True, 5: True, 8: False}, pinned("beside", 8, BESIDE_RULE), False),
        (ROOT_RULE, {7: True}, pinned("beside", 8, ROOT_RULE), False),
    ],
    ids=["of the root", "renamed root", "of a sibling", "a pattern", "detached", "the sibling's own", "another tree"],
)
def test_policy_of_a_renamed_column_holds_in_the_whole_tree(
    monkeypatch: pytest.MonkeyPatch, rule: str, tree: dict[int, bool], pins: dict[str, Pin], hidden: bool
) -> None:
    """Also for a table that has no topic yet, and by the number that the column has there."""
    monkeypatch.setenv("TWOFOLD_POLICY__COLUMNS", json.dumps([{"column": rule, "action": "null"}]))
    policy = ColumnPolicy(DataPolicy(load(EXAMPLE)), ColumnsNow(name="mail", tree=tree), "p")
    shape, found = policy.hide(RENAMED_SHAPE, RENAMED, "p.public.leaf", pins)
    assert shape.policy == ({"mail": "null"} if hidden else {})
    assert found is not None
    assert [each.number for each in found.columns] == ([2] if hidden else [])


def test_policy_leaves_out_what_may_be_a_column_that_the_tree_hid_and_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as the stream is behind that."""
    monkeypatch.setenv("TWOFOLD_POLICY__COLUMNS", json.dumps([{"column": ROOT_RULE, "action": "null"}]))
    catalog, pins = ColumnsNow(tree={7: True, 9: True}), pinned("root", 9, ROOT_RULE)
    catalog.now = replace(catalog.now, columns=catalog.now.columns[:1], dropped=frozenset({2}))
    policy = ColumnPolicy(DataPolicy(load(EXAMPLE)), catalog, "p")
    assert policy.hide(RENAMED_SHAPE, RENAMED, "p.public.leaf", pins)[0].policy.keys() == {"mail"}
    shape, later = replace(RENAMED_SHAPE, columns=SHAPE.columns[:1]), replace(RENAMED, columns=RENAMED.columns[:1])
    assert policy.hide(shape, later, "p.public.leaf", pins)[0].policy == {}


def test_policy_holds_for_a_renamed_column_of_a_table_that_the_catalog_does_not_show(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may be a partition that a prepared transaction makes."""
    monkeypatch.setenv("TWOFOLD_POLICY__COLUMNS", json.dumps([{"column": ROOT_RULE, "action": "null"}]))
    catalog = ColumnsNow(name="mail", published=False)
    catalog.is_there = False
    policy = ColumnPolicy(DataPolicy(load(EXAMPLE)), catalog, "p")
    shape, _ = policy.hide(RENAMED_SHAPE, RENAMED, "p.public.leaf", pinned("root", 6, ROOT_RULE), committed=False)
    assert shape.policy == {"mail": "null"}


def test_policy_rules_without_a_column_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = {
        "public.leaf.email": False, "public.root.email": False, "public.leaf.mail": True, "public.gone.*": True,
        "publik.*.email": True, "public.*.mail": False, "public.leaf.none": False,
    }  # fmt: skip
    columns = [{"column": column, "action": "keep" if column.endswith("none") else "null"} for column in rules]
    monkeypatch.setenv("TWOFOLD_POLICY__COLUMNS", json.dumps(columns))
    policy = ColumnPolicy(DataPolicy(load(EXAMPLE)), ColumnsNow((("public", "root"),)), "p")
    assert [rule.column for rule in policy.idle_rules([LEAF])] == [column for column, idle in rules.items() if idle]


def test_policy_keeps_in_the_pin_what_it_hides() -> None:
    """Once the topic is that table's, and through a restart of the topic."""
    hidden = HiddenColumns((Hidden(2, "public.t.email", 7),), ("id", "email"))
    topic, pins = "p.public.t", {"p.public.t": Pin("public", "t", 1, relation=6)}
    here = Pins("p", pins, TableLives(pins), load_first=False)
    here.note_hidden(topic, 7, hidden)
    assert here[topic].hidden is None  # another table's rows are in the topic still
    here.emptied(topic, 7)
    assert here[topic].hidden == hidden.to_text()
    assert here.take_unwritten()[topic].hidden == hidden.to_text()
    here.note_hidden(topic, 7, hidden)
    assert here.take_unwritten() == {}
