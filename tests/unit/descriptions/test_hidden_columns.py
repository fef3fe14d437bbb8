"""Which columns of a Relation message are taken for those that the data policy has hidden: always
the hidden one, whatever DDL lies between.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest

from twofold.descriptions.hidden_columns import (
    CatalogColumn,
    CatalogTable,
    Hidden,
    HiddenColumns,
    MessageColumn,
    hidden_now,
    locate,
)

INT, TEXT, BYTES = 23, 25, 17
RULE = "public.t.email"


@dataclass
class Table:
    """A table whose DDL is done as PostgreSQL does it. Numbers are given once."""

    columns: list[CatalogColumn] = field(default_factory=list)
    last: int = 0
    xid: int = 100

    def ddl(self, *commands: str) -> Table:
        for command in commands:
            self.xid += 1
            match command.split():
                case ["ADD", name, *kind]:
                    self.last += 1
                    oid = {"int": INT, "bytea": BYTES}.get(kind[0] if kind else "", TEXT)
                    self.columns.append(CatalogColumn(self.last, name, oid, self.xid))
                case ["DROP", name]:
                    self.columns = [each for each in self.columns if each.name != name]
                case ["RENAME", old, new]:
                    assert all(each.name != new for each in self.columns)
                    self.columns = [replace(c, name=new, row=self.xid) if c.name == old else c for c in self.columns]
                case _:
                    raise AssertionError(command)
        return self

    def copy(self) -> Table:
        return Table([*self.columns], self.last, self.xid)

    @property
    def now(self) -> CatalogTable:
        alive = {each.number for each in self.columns}
        return CatalogTable(tuple(self.columns), frozenset(range(1, self.last + 1)) - alive)

    @property
    def said(self) -> list[MessageColumn]:
        return [MessageColumn(each.name, each.type) for each in self.columns]

    def place(self, number: int) -> int | None:
        return next((at for at, each in enumerate(self.columns) if each.number == number), None)

    def hidden(self, name: str) -> HiddenColumns:
        rules = [RULE if each.name == name else None for each in self.columns]
        return hidden_now(HiddenColumns(), self.now, [each.number for each in self.columns], rules)


def table(*more: str) -> Table:
    return Table().ddl("ADD id int", *more)


@pytest.mark.parametrize(
    ("ddl", "place"),
    [
        (["RENAME email email_old", "ADD email"], 2),
        (["DROP contact", "RENAME email contact"], 1),
        (["RENAME email x", "RENAME contact email", "RENAME x contact"], 2),
        (["DROP contact", "RENAME email contact", "ADD email"], 1),
        (["RENAME email mail"], 2),
        (["DROP amount", "RENAME email amount"], 2),
        (["DROP contact", "ADD contact", "RENAME email mail", "ADD email"], 1),
        ([], 2),
        (["DROP email"], None),
        (["DROP email", "ADD email"], None),
    ],
)
@pytest.mark.parametrize("committed", [True, False])
def test_a_hidden_column_is_found_under_each_name(ddl: list[str], place: int | None, committed: bool) -> None:
    """Exactly so where the catalog has the same; else at least, in a transaction in progress."""
    before = table("ADD contact", "ADD email", "ADD amount int")
    hidden, then = before.hidden("email"), before.copy().ddl(*ddl)
    found = locate(hidden, (then if committed else before).now, then.said, committed=committed)
    if committed:
        assert found.certain == ({} if place is None else {place: RULE})
        assert not found.possible
        assert found.numbers == tuple(each.number for each in then.columns)
    elif place is not None and ddl != ["DROP contact", "RENAME email contact", "ADD email"]:
        assert place in {**found.certain, **found.possible}
        assert 0 not in {**found.certain, **found.possible}, "a number is no text"


def test_a_message_that_is_older_than_the_catalog_is_read_by_the_numbers_that_may_be_meant() -> None:
    then = table("ADD contact", "ADD email", "ADD amount int")
    hidden = then.hidden("email")
    later = then.copy().ddl("RENAME email mail", "ADD more")
    assert locate(hidden, later.now, then.said, committed=True).certain == {2: RULE}
    dropped = later.copy().ddl("DROP contact")
    found = locate(hidden, dropped.now, then.said, committed=True)
    assert (found.certain, set(found.possible)) == ({}, {1, 2})
    later.ddl("DROP mail")
    assert locate(hidden, later.now, then.said, committed=True).certain == {2: RULE}


def test_a_column_that_is_not_sent_moves_no_other_one() -> None:
    """A generated one, or one outside of the list: the hidden one's place is before it."""
    then = table("ADD total int", "ADD contact", "ADD email")
    hidden = HiddenColumns((Hidden(4, RULE, 104),), ("id", "contact", "email"))
    then.ddl("RENAME email email_old", "ADD email")
    sent = [each for each in then.said if each.name != "total"]
    then.ddl("DROP email_old")
    now = replace(then.now, columns=tuple(replace(each, may_be_listed=True) for each in then.now.columns))
    found = locate(hidden, now, sent, committed=True)
    assert {**found.certain, **found.possible}.keys() == {2, 3}


def test_a_generated_column_that_has_a_dropped_ones_name_now_moves_no_other_one() -> None:
    """The message is from before that; the generated column was never sent."""
    then = table("ADD total int", "ADD email", "ADD contact")
    hidden = HiddenColumns((Hidden(3, RULE, 103),), ("id", "email", "contact"))
    sent = [each for each in then.said if each.name != "total"]
    then.ddl("DROP contact", "RENAME total contact", "RENAME email email_old")
    columns = tuple(replace(each, is_generated=each.name == "contact") for each in then.now.columns)
    found = locate(hidden, replace(then.now, columns=columns), sent, committed=True)
    assert 1 in {**found.certain, **found.possible}


def test_a_hidden_column_that_is_not_published_any_more_is_not_looked_for() -> None:
    here = table("ADD contact", "ADD email")
    hidden = here.hidden("email")
    found = locate(hidden, here.now, here.said[:2], committed=True)
    assert (found.certain, found.possible, found.numbers) == ({}, {}, (1, 2))


def test_a_hidden_column_that_is_not_published_and_is_renamed_hides_no_other_one() -> None:
    """One that is new may be the hidden one, of a message that is older than the catalog."""
    here = table("ADD contact", "ADD email", "ADD note")
    hidden = here.hidden("email")
    here.ddl("RENAME email mail")
    found = locate(hidden, here.now, [each for each in here.said if each.name != "mail"], committed=True)
    assert (found.certain, found.possible, found.are_others_shown) == ({}, {}, True)
    here.ddl("DROP note", "ADD note")
    found = locate(hidden, here.now, [each for each in here.said if each.name != "mail"], committed=True)
    assert (found.certain, found.possible) == ({}, {2: RULE})


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("is_dropped", [True, False])
def test_a_hidden_column_that_was_gone_at_the_last_message_hides_no_other_one(
    committed: bool, is_dropped: bool
) -> None:
    """Nor in a prepared transaction, of which the catalog may not know all."""
    here = table("ADD email", "ADD contact", "ADD note")
    hidden = here.hidden("email")
    if is_dropped:
        here.ddl("DROP email")
    sent = [each for each in here.said if each.name != "email"]
    if not committed:
        assert 1 in locate(hidden, here.now, sent, committed=False).possible, "it may be the one"
    hidden = hidden_now(hidden, here.now, [1, 3, 4], [None, None, None])
    assert locate(hidden, here.now, sent, committed=committed).numbers == (1, 3, 4)
    for more in ([], ["ADD more"]):
        here.ddl(*more)
        sent = [each for each in here.said if each.name != "email"]
        found = locate(hidden, here.now, sent, committed=committed)
        assert (found.certain, found.possible) == ({}, {})
    renamed = [replace(each, name="x") if each.name == "contact" else each for each in sent]
    found = locate(hidden, here.now, renamed, committed=False)
    assert 1 in {**found.certain, **found.possible}, "the transaction may be older"


def test_columns_of_a_table_that_is_gone_are_found_by_their_former_names_or_all_are_hidden() -> None:
    then = table("ADD email")
    hidden = then.hidden("email")
    assert locate(hidden, None, then.said, committed=True).certain == {1: RULE}
    then.ddl("RENAME email email_old", "ADD email")
    assert set(locate(hidden, None, then.said, committed=True).possible) == {0, 1, 2}
    assert locate(HiddenColumns(), None, then.said, committed=True).possible == {}
    both = hidden_now(hidden, then.now, [1, 2, 3], [None, RULE, RULE])
    assert set(locate(both, None, then.said, committed=True).possible) == {0, 1, 2}, "one rule, and two columns"


def test_what_is_hidden_goes_through_the_pin_and_keeps_columns_that_are_not_published() -> None:
    here = table("ADD contact", "ADD email")
    hidden = here.hidden("email")
    assert HiddenColumns.from_text(hidden.to_text()) == hidden
    assert HiddenColumns.from_text(None) == HiddenColumns()
    assert HiddenColumns().to_text() is None
    kept = hidden_now(hidden, here.now, [1, 2], [None, "public.t.contact"])
    assert [each.number for each in kept.columns] == [2, 3]
    assert kept.columns[1] == Hidden(3, RULE, hidden.columns[0].row, was_sent=False)


NAMES = ["contact", "email", "note", "mail", "x"]


def wander(here: Table, dice: random.Random, *, most: int) -> Table:
    for _ in range(dice.randint(0, most)):
        names = [each.name for each in here.columns[1:]]
        free = [name for name in NAMES if name not in names]
        match dice.choice(["ADD", "DROP", "RENAME"]):
            case "ADD" if free:
                here.ddl(f"ADD {dice.choice(free)}")
            case "DROP" if names:
                here.ddl(f"DROP {dice.choice(names)}")
            case "RENAME" if names and free:
                here.ddl(f"RENAME {dice.choice(names)} {dice.choice(free)}")
    return here


def test_random_ddl_shows_no_hidden_column() -> None:
    """The catalog is that of the message. The rule for the name of old hides too."""
    dice, shown = random.Random(45), 0
    for _ in range(3000):
        here = table("ADD contact", "ADD email", "ADD note")
        hidden = here.hidden("email")
        here = wander(here, dice, most=6)
        found = locate(hidden, here.now, here.said, committed=True)
        place = here.place(3)
        covered = {**found.certain, **found.possible}
        shown += place is not None and place not in covered
        assert covered.keys() <= {place}, "nothing else is hidden"
    assert shown == 0


def test_random_ddl_and_column_lists_show_no_hidden_column() -> None:
    """One message after the other, each of which the catalog has; the publication may leave columns
    out, and send them again under other names.
    """
    dice, shown = random.Random(45), list[object]()
    for _ in range(1000):
        here = table("ADD contact", "ADD email", "ADD note")
        hidden = here.hidden("email")
        for _ in range(4):
            here = wander(here, dice, most=3)
            listed = [each for each in here.columns if each.name == "id" or dice.random() < 0.7]
            found = locate(hidden, here.now, [MessageColumn(each.name, each.type) for each in listed], committed=True)
            place = next((at for at, each in enumerate(listed) if each.number == 3), None)
            if place is not None and place not in {**found.certain, **found.possible}:
                shown.append((hidden, listed))
            rules = [RULE if at == place else None for at in range(len(listed))]
            hidden = hidden_now(hidden, here.now, [each.number for each in listed], rules)
    assert not shown


@pytest.mark.parametrize("committed", [True, False])
def test_random_ddl_of_a_stream_that_lags_shows_a_hidden_column_hardly_ever(committed: bool) -> None:
    """Only where all sent columns have names that the catalog has in the same order, and are
    others: after two DDL commands or more that the stream is behind, or that are not committed.
    """
    dice, shown = random.Random(45), 0
    for _ in range(2000):
        here = table("ADD contact", "ADD email", "ADD note")
        hidden = here.hidden("email")
        then = wander(here.copy(), dice, most=4)
        now = here if not committed and dice.random() < 0.5 else wander(then.copy(), dice, most=4)
        place = then.place(3)
        if place is None or then.columns[place].name == "email":
            continue
        if dice.random() < 0.5:  # a look at the catalog was ahead of the stream
            ruled = {each.number for each in hidden.columns}
            rules = [RULE if c.name == "email" or c.number in ruled else None for c in now.columns]
            hidden = hidden_now(hidden, now.now, [each.number for each in now.columns], rules)
        found = locate(hidden, now.now, then.said, committed=committed)
        if place not in {**found.certain, **found.possible}:
            rest = iter(each.name for each in now.said)
            assert all(each.name in rest for each in then.said), (then.said, now.said)
            shown += 1
    assert shown <= 2
