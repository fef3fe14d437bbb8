"""Decides which columns of a Relation message are columns that the data policy has hidden before.

Pure. A column is known by its number, which PostgreSQL never gives twice, and a Relation message
has names and no numbers. The message has its columns in the order of their numbers, and may be
older or newer than the catalog. So a column of the message counts as hidden as soon as it may be a
hidden column: at worst too much is hidden, and only as long as catalog and stream differ.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

_TEXTS = frozenset({25, 1042, 1043, 19})
"""The oids of text, char(n), varchar(n) and name: a value of one such type is soon a value of
another.
"""


@dataclass(frozen=True, slots=True)
class MessageColumn:
    """A column as a Relation message has it."""

    name: str
    type: int


@dataclass(frozen=True, slots=True)
class CatalogColumn:
    """A column as the catalog has it."""

    number: int
    name: str
    type: int
    row: int
    """The xmin of the column's row in pg_attribute: each RENAME writes that row."""
    may_be_listed: bool = False
    """Whether a publication lists the table's columns."""
    is_generated: bool = False


@dataclass(frozen=True, slots=True)
class CatalogTable:
    """A table's columns, as the catalog has them."""

    columns: tuple[CatalogColumn, ...]
    """The columns, in the order of their numbers."""
    dropped: frozenset[int]
    """The numbers of dropped columns."""
    above: tuple[tuple[str, str], ...] = ()
    """Schema and name of the tables of which the table is a partition, the nearest first."""


@dataclass(frozen=True, slots=True)
class Hidden:
    """A column that the data policy has hidden."""

    number: int
    rule: str
    """The column's full name when it was first hidden: the rule for that name applies."""
    row: int
    """The value of `CatalogColumn.row` when the column was last in a message. If that row was not
    written since, and a message lacks the column, the column is not published any more.
    """
    was_sent: bool = True
    """Whether the column was among those that were sent, when the numbers were last known."""


@dataclass(frozen=True, slots=True)
class HiddenColumns:
    """The hidden columns of one table; its topic's pin keeps them."""

    columns: tuple[Hidden, ...] = ()
    names: tuple[str, ...] = ()
    """The names of all columns that were sent, when the numbers were last known."""
    rows: tuple[int, ...] = ()
    """The value of `CatalogColumn.row` of each of them then."""

    def to_text(self) -> str | None:
        """Return the text for the pin; None without a hidden column."""
        hidden = [[each.number, each.rule, each.row, each.was_sent] for each in self.columns]
        return json.dumps([hidden, self.names, self.rows], separators=(",", ":")) if hidden else None

    @classmethod
    def from_text(cls, text: str | None) -> HiddenColumns:
        """Return the hidden columns in a pin."""
        hidden, *sent = json.loads(text) if text else ([],)
        return cls(tuple(Hidden(*each) for each in hidden), *map(tuple, sent))


@dataclass(frozen=True, slots=True)
class Located:
    """The columns of a message that were hidden before, by their places in it."""

    certain: Mapping[int, str]
    """The columns that are certainly hidden, with the names whose rules apply."""
    possible: Mapping[int, str]
    numbers: tuple[int, ...] | None
    """The numbers of all columns of the message; None if catalog and message differ."""
    are_others_shown: bool = False
    """Whether all other columns of the message are known not to be hidden ones."""

    def with_more(self, other: Located) -> Located:
        """Return the columns that either of two descriptions hides."""
        certain = {**self.certain, **other.certain}
        return replace(self, certain=certain, possible={at: r for at, r in self.possible.items() if at not in certain})


NOTHING_HIDDEN = Located({}, {}, None)


def locate(
    before: HiddenColumns, now: CatalogTable | None, sent: Sequence[MessageColumn], *, committed: bool
) -> Located:
    """Find the hidden columns in a message.

    `now`: None if the catalog has no such table any more. `committed`: the message's description is
    committed, so the catalog has it.
    """
    if now is None:
        return _of_dropped_table(before, sent)
    numbers = numbers_of(now.columns, sent)
    certain, possible = dict[int, str](), dict[int, str]()
    for hidden in before.columns:
        is_unsent = numbers is not None and hidden.number not in numbers
        if is_unsent and _is_still_absent(before.names, hidden, now, sent):
            continue
        column = next((each for each in now.columns if each.number == hidden.number), None)
        if not committed and (column is None or not _is_as_before(before.names, column, sent)):
            possible |= dict.fromkeys(_alike(now, hidden, column, sent), hidden.rule)
        if numbers is None:
            places: Sequence[int] = _between(now, hidden.number, sent)
        elif is_unsent and column is not None and column.row != hidden.row:
            # It is not published any more, or the message is older than the catalog.
            places = [at for at in _between(now, hidden.number, sent) if not _is_unchanged(before, now, numbers[at])]
            possible |= dict.fromkeys(places, hidden.rule)
            continue
        else:
            places = [at for at, number in enumerate(numbers) if number == hidden.number]
        if len(places) > 1:
            possible |= dict.fromkeys(places, hidden.rule)
            continue
        certain |= dict.fromkeys(places, hidden.rule)
    possible = {at: rule for at, rule in possible.items() if at not in certain}
    known = numbers is not None and bool(before.columns) and not possible
    return Located(certain, possible, numbers, known)


def hidden_now(
    before: HiddenColumns, now: CatalogTable, numbers: Sequence[int], rules: Sequence[str | None]
) -> HiddenColumns:
    """Return the hidden columns from now on, if the numbers of a message's columns are known.

    `rules`: for each column the name whose rule hides it; None if the column is shown.
    """
    columns = {column.number: column for column in now.columns}
    hidden = [
        Hidden(number, rule, columns[number].row)
        for number, rule in zip(numbers, rules, strict=True)
        if rule is not None
    ]
    # Also those that are dropped now: the stream may be behind that.
    unpublished = [replace(each, was_sent=False) for each in before.columns if each.number not in numbers]
    kept = sorted([*hidden, *unpublished], key=lambda each: each.number)
    sent = [columns[number] for number in numbers]
    return HiddenColumns(tuple(kept), tuple(each.name for each in sent), tuple(each.row for each in sent))


def numbers_of(columns: Iterable[CatalogColumn], sent: Iterable[MessageColumn]) -> tuple[int, ...] | None:
    """Return the columns' numbers if the catalog has the same columns in the same order, and
    perhaps more, which are not published.
    """
    found, rest = [], iter(columns)
    for each in sent:
        match = next((column for column in rest if (column.name, column.type) == (each.name, each.type)), None)
        if match is None:
            return None
        found.append(match.number)
    return tuple(found)


def _between(now: CatalogTable, number: int, sent: Sequence[MessageColumn]) -> range:
    """Return the places that the column may have among those of the message.

    All sent columns with lower numbers precede the column, and perhaps others, and dropped columns.
    A generated column may have the name of a column that was sent and is dropped.
    """
    names = {each.name for each in sent}
    lower = [each for each in now.columns if each.number < number]
    least = sum(not each.is_generated and (not each.may_be_listed or each.name in names) for each in lower)
    most = len(lower) + sum(gone < number for gone in now.dropped)
    return range(min(least, len(sent)), min(most + 1, len(sent)))


def _is_still_absent(names: Sequence[str], hidden: Hidden, now: CatalogTable, sent: Sequence[MessageColumn]) -> bool:
    """Whether the column was dropped, or not published, when the numbers were last known, and all
    columns that it could be among are those that were sent then.
    """
    upto = _most_before(now, hidden) + 1
    return not hidden.was_sent and [each.name for each in sent[:upto]] == list(names[:upto])


def _is_unchanged(before: HiddenColumns, now: CatalogTable, number: int) -> bool:
    """Whether a column has had its name since the numbers were last known: no other one had it."""
    column = next(each for each in now.columns if each.number == number)
    return (column.name, column.row) in zip(before.names, before.rows, strict=False)


def _most_before(now: CatalogTable, hidden: Hidden) -> int:
    """Return the highest number of columns that may precede this one in a message."""
    return sum(each.number < hidden.number for each in now.columns) + sum(gone < hidden.number for gone in now.dropped)


def _is_as_before(names: Sequence[str], column: CatalogColumn, sent: Sequence[MessageColumn]) -> bool:
    """Whether the columns up to the hidden one are those that were sent last.

    A transaction in progress may have changed what the catalog does not show yet.
    """
    upto = names.index(column.name) + 1 if column.name in names else 0
    return upto > 0 and [each.name for each in sent[:upto]] == list(names[:upto])


def _alike(now: CatalogTable, hidden: Hidden, column: CatalogColumn | None, sent: Sequence[MessageColumn]) -> list[int]:
    """Return the places where the column may be, if the transaction may have dropped any before it
    and renamed all.
    """
    most = _most_before(now, hidden)
    return [at for at, each in enumerate(sent) if at <= most and (column is None or _may_be(column.type, each.type))]


def _may_be(one: int, other: int) -> bool:
    return one == other or {one, other} <= _TEXTS


def _of_dropped_table(before: HiddenColumns, sent: Sequence[MessageColumn]) -> Located:
    """Find the hidden columns by name if all names are there; else each may be hidden."""
    if not before.columns:
        return NOTHING_HIDDEN
    names = {each.rule.rpartition(".")[2]: each.rule for each in before.columns}
    has_own_names = len(names) == len(before.columns) and names.keys() <= set(before.names)
    if has_own_names and tuple(each.name for each in sent) == before.names:
        return Located({at: names[c.name] for at, c in enumerate(sent) if c.name in names}, {}, None)
    return Located({}, dict.fromkeys(range(len(sent)), before.columns[0].rule), None)
