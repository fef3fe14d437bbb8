"""What a table's new description means for its topic: each difference alone, and any two together.

`tests/integration/evolution/test_descriptions.py` shows that PostgreSQL makes these differences.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twofold.descriptions import staleness
from twofold.descriptions.description import FORMAT, Column, Description, KeyIndex, Publication
from twofold.descriptions.staleness import KeyColumnsChanged, LookCloser, NeedsReload, NewSchema, Same, Verdict, compare

PUBLICATION = Publication(900, 500, 10, "bank", "iudt", True, "n", frozenset({901}), "where", None)
LIST = frozenset({1, 2})
TABLE = Description(
    major=15,
    oid=16400,
    owner=10,
    kind="r",
    replica_identity="f",
    row=500,
    type_row=500,
    toast=16403,
    files="files",
    altered="altered",
    columns=(
        Column(1, "id", 23, -1, "", older_rows_have=False, row=5),
        Column(2, "v", 23, -1, "", older_rows_have=False, row=5),
        Column(3, "twice", 23, -1, "s", older_rows_have=False, row=5),
    ),
    keys=(KeyIndex(16405, 16406, True, True, False, (1,)), KeyIndex(16407, 0, True, False, False, (2,))),
    attributes=frozenset({(16500, 1, "a", 5), (16500, 2, "b", 5)}),
    labels=frozenset({(16600, "sad", 5), (16601, "glad", 5)}),
    partitions=frozenset({(16700, True, 5), (16699, False, 5)}),
    links=(500,),
    publication=PUBLICATION,
)
Change = Callable[[Description], Description]


def changed(**values: Any) -> Change:
    return lambda d: replace(d, **values)


def published(**values: Any) -> Change:
    return lambda d: replace(d, publication=replace(d.publication or PUBLICATION, **values))


def column(at: int, **values: Any) -> Change:
    return lambda d: replace(d, columns=tuple(replace(c, **values) if c.number == at else c for c in d.columns))


def added(number: int, name: str, *, default: bool = False) -> Change:
    return lambda d: replace(d, columns=(*d.columns, Column(number, name, 23, -1, "", default, 5)))


def dropped(number: int) -> Change:
    return lambda d: replace(d, columns=tuple(c for c in d.columns if c.number != number))


def both(*changes: Change) -> Change:
    def change(described: Description) -> Description:
        for each in changes:
            described = each(described)
        return described

    return change


def key(**values: Any) -> Change:
    return lambda d: replace(d, keys=(replace(d.keys[0], **values), *d.keys[1:]))


def written_again(d: Description) -> Description:
    """As pg_upgrade writes all rows of the catalog."""
    attributes = frozenset((oid, number, name, 9) for oid, number, name, _ in d.attributes)
    d = replace(d, partitions=frozenset((oid, made_here, 9) for oid, made_here, _ in d.partitions))
    return replace(d, attributes=attributes, labels=frozenset((oid, text, 9) for oid, text, _ in d.labels))


DIFFERENCES: dict[str, tuple[Change, type[Verdict]]] = {
    "another name for a time": (changed(type_row=501), NeedsReload),
    "another owner": (changed(type_row=501, owner=11), LookCloser),
    "rewritten": (changed(files="other", altered="other"), NeedsReload),
    "rewritten twice, which leaves no column different": (changed(files="other", toast=16409), NeedsReload),
    "VACUUM FULL": (changed(files="other", row=501), Same),
    "its first column that may be long": (both(changed(files="other", toast=0)), Same),
    "GRANT": (changed(row=501), Same),
    "column replaced": (both(dropped(2), added(4, "v"), key(columns=(1,))), NeedsReload),
    "column added again": (both(changed(former=frozenset({(7, "w")})), added(8, "w")), NeedsReload),
    "column with a default": (added(5, "more", default=True), NeedsReload),
    "column added": (added(6, "plain"), NewSchema),
    "column dropped": (dropped(2), NewSchema),
    "generated column dropped": (dropped(3), Same),
    "column renamed": (column(2, name="w"), NeedsReload),
    "another type": (column(2, type=25), NewSchema),
    "no longer generated": (column(3, generated=""), NeedsReload),
    "generated columns are published": (published(generated="s", row=501), NeedsReload),
    "attribute added": (changed(attributes=TABLE.attributes | {(16500, 3, "c", 6)}), NeedsReload),
    "type with attributes added": (changed(attributes=TABLE.attributes | {(16501, 3, "c", 6)}), Same),
    "attribute renamed and back": (changed(attributes=frozenset({(16500, 1, "a", 6), (16500, 2, "b", 5)})), NeedsReload),
    "label renamed": (changed(labels=frozenset({(16600, "blue", 6), (16601, "glad", 5)})), NeedsReload),
    "label renamed and back": (changed(labels=frozenset({(16600, "sad", 6), (16601, "glad", 5)})), NeedsReload),
    "label added": (changed(labels=TABLE.labels | {(16602, "mad", 6)}), Same),
    "filter": (published(filter="other", members=frozenset({901, 902})), NeedsReload),
    "no filter": (published(filter=None), NeedsReload),
    "list narrowed": (published(columns=LIST), Same),
    "out for a time": (published(members=frozenset({902})), NeedsReload),
    "published twice": (published(members=frozenset({901, 902})), Same),
    "option and back": (published(row=501), LookCloser),
    "deletes left out": (published(operations="iut", row=501), LookCloser),
    "attached": (changed(partitions=TABLE.partitions | {(16701, False, 6)}), NeedsReload),
    "made as a partition": (changed(partitions=TABLE.partitions | {(16701, True, 6)}), Same),
    "attached again": (changed(partitions=frozenset({(16700, False, 6), (16699, False, 5)})), NeedsReload),
    "detached and attached again": (changed(partitions=frozenset({(16700, True, 5), (16699, False, 6)})), NeedsReload),
    "partition renamed": (changed(partitions=frozenset({(16700, False, 5), (16699, False, 5)})), Same),
    "no partition for a time": (changed(links=(501,)), NeedsReload),
    "no partition any more": (changed(links=()), Same),
    "detached": (changed(partitions=frozenset()), LookCloser),
    "key's index made again": (key(index=16408, constraint=16409), NeedsReload),
    "REINDEX CONCURRENTLY": (key(index=16408), Same),
    "index made again that is not the key": (lambda d: replace(d, keys=(d.keys[0], replace(d.keys[1], index=16409))), Same),
    "other key": (key(usable=False), KeyColumnsChanged),
    "other server version": (both(changed(major=18, type_row=9, row=9, altered="other"), written_again), Same),
}  # fmt: skip


def verdicts() -> dict[str, str]:
    """Those that are not the listed ones."""
    found = {name: compare(TABLE, change(TABLE)) for name, (change, _) in DIFFERENCES.items()}
    return {name: str(v) for name, v in found.items() if not isinstance(v, DIFFERENCES[name][1])}


def test_each_difference_alone() -> None:
    assert verdicts() == {}
    assert compare(TABLE, TABLE) == Same()


WIDENED = replace(TABLE, publication=replace(PUBLICATION, columns=frozenset({1})))
BY_DEFAULT = replace(TABLE, replica_identity="d")


@pytest.mark.parametrize(
    ("before", "now", "verdict"),
    [
        (WIDENED, TABLE, NeedsReload),
        (replace(TABLE, publication=replace(PUBLICATION, operations="i")), TABLE, NeedsReload),
        (BY_DEFAULT, key(index=1, constraint=2)(BY_DEFAULT), Same),
        (BY_DEFAULT, both(key(index=1, constraint=2), changed(row=501))(BY_DEFAULT), LookCloser),
        (BY_DEFAULT, key(columns=(2,))(BY_DEFAULT), KeyColumnsChanged),
        (replace(TABLE, replica_identity="i"), TABLE, KeyColumnsChanged),
        (replace(TABLE, replica_identity="n"), TABLE, KeyColumnsChanged),
    ],
)
def test_what_depends_on_both(before: Description, now: Description, verdict: type[Verdict]) -> None:
    assert isinstance(compare(before, now), verdict)


def test_from_19_on_another_toast_table_may_be_of_repack() -> None:
    rewritten = changed(files="other", toast=16409)
    verdict = compare(TABLE, rewritten(TABLE))
    assert isinstance(verdict, NeedsReload)
    assert verdict.reason.startswith("ALTER TABLE rewrote")
    on_19 = replace(TABLE, major=19)
    verdict = compare(on_19, rewritten(on_19))
    assert isinstance(verdict, NeedsReload)
    assert "by REPACK (CONCURRENTLY), which changes no row" in verdict.reason
    verdict = compare(on_19, both(rewritten, changed(altered="other"))(on_19))
    assert isinstance(verdict, NeedsReload)
    assert verdict.reason.startswith("ALTER TABLE rewrote")


GRAVITY = (Same, NewSchema, KeyColumnsChanged, LookCloser, NeedsReload)


@given(st.lists(st.sampled_from(sorted(DIFFERENCES)), max_size=4))
def test_no_difference_hides_another(names: list[str]) -> None:
    kept: dict[str, set[str]] = {}
    for name in names:
        fields = set_by(name)
        if "major" not in fields and not any(fields & others for others in kept.values()):
            kept[name] = fields
    now = both(*(DIFFERENCES[name][0] for name in kept))(TABLE)
    gravest = max((GRAVITY.index(DIFFERENCES[name][1]) for name in kept), default=0)
    assert GRAVITY.index(type(compare(TABLE, now))) >= gravest


def set_by(name: str) -> set[str]:
    """The fields that a difference touches; which columns are sent depends on two of them."""
    now = DIFFERENCES[name][0](TABLE)
    fields = {field for field in Description.__slots__ if getattr(now, field) != getattr(TABLE, field)}
    return fields | {"columns"} if "publication" in fields else fields


@given(st.lists(st.sampled_from(sorted(DIFFERENCES)), max_size=4))
def test_a_pin_keeps_all_of_it(names: list[str]) -> None:
    now = both(*(DIFFERENCES[name][0] for name in names))(TABLE)
    assert Description.from_text(now.to_text()) == now
    assert compare(now, now) == Same()


@pytest.mark.parametrize("text", [None, "", "away", f"[{FORMAT + 1}]", "[]"])
def test_a_text_of_another_format_is_no_description(text: str | None) -> None:
    assert Description.from_text(text) is None


PARTS = ["_changed_columns", "_changed_types", "_changed_publication", "_came_back", "_unexplained", "_schema", "_key_columns", "_made_again"]  # fmt: skip


@pytest.mark.parametrize("part", PARTS)
def test_a_comparison_without_one_of_its_parts_is_found(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staleness, part, lambda *_, **__: ())
    assert verdicts()


def test_the_text_in_pins_stays_as_it_is() -> None:
    """A pin with another text of the same table would be written again, for each table."""
    described = replace(TABLE, former=frozenset({(5, "z"), (4, "w")}), links=(800,))
    text = (
        '[4,15,16400,10,"r","f",500,500,16403,"files","altered",[[1,"id",23,-1,"",false,5],[2,"v",23,-1,"",false,5],'
        '[3,"twice",23,-1,"s",false,5]],[[16405,16406,true,true,false,[1]],[16407,0,true,false,false,[2]]],'
        '[[16500,1,"a",5],[16500,2,"b",5]],[[16600,"sad",5],[16601,"glad",5]],[[16699,false,5],[16700,true,5]],[800],'
        '[900,500,10,"bank","iudt",true,"n",[901],"where",null],[[4,"w"],[5,"z"]]]'
    )
    assert described.to_text() == text
    assert replace(described, publication=None).to_text().endswith('[800],null,[[4,"w"],[5,"z"]]]')
