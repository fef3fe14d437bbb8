"""Decides what a table's new description means for its topic.

One pure function, `compare`, has both descriptions and nothing of the time in between. So every
trace of a change that was undone counts as the change. A false reload costs time; a missed one
leaves rows that PostgreSQL does not have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from twofold.descriptions.description import Description, Publication


@dataclass(frozen=True, slots=True)
class Same:
    """Nothing changed that readers or the topic would notice."""


@dataclass(frozen=True, slots=True)
class NewSchema:
    """The table has other columns, and readers get older rows as PostgreSQL has them."""


@dataclass(frozen=True, slots=True)
class KeyColumnsChanged:
    """The message key has other columns. The stream says from which row on."""


@dataclass(frozen=True, slots=True)
class NeedsReload:
    """The topic lacks changes that PostgreSQL did not send: only a reload brings them."""

    reason: str


@dataclass(frozen=True, slots=True)
class LookCloser:
    """The topic may lack rows. A person knows whether it does, or a reload brings them."""

    reason: str


Verdict = Same | NewSchema | KeyColumnsChanged | NeedsReload | LookCloser
Lacking = NeedsReload | LookCloser

_HAS_REPACK = 19
"""The first major version whose REPACK (CONCURRENTLY) gives a table another TOAST table."""
AWAY = "away"
"""The text in place of a pin's description, once a look did not find the table published."""
WAS_AWAY = NeedsReload("it was not published for a time, and changes meanwhile were not sent")


def compare(before: Description, now: Description) -> Verdict:
    """Compare two descriptions of one table."""
    assert before.oid == now.oid, "descriptions of one table"
    now = now.follow(before)
    for reason in _unsent(before, now):
        return NeedsReload(reason)
    if before.major == now.major:
        for reason in _unexplained(before, now):
            return LookCloser(reason)
    if _key_columns(before) != _key_columns(now):
        return KeyColumnsChanged()
    return Same() if _schema(before) == _schema(now) else NewSchema()


def find_lacking(before: Description, now: Description, *, without_message: bool = False) -> Lacking | None:
    """Return what the topic of a table lacks after a change from one description to another.
    `without_message`: the stream has a DDL message of each command, and none of this change.
    """
    if now.publication is None:
        return None
    if before.publication is None:
        return WAS_AWAY
    match compare(before, now):
        case NeedsReload() | LookCloser() as verdict:
            return verdict
        case KeyColumnsChanged() if without_message:
            return NeedsReload("its message key was changed by a command that no message told of")
    return None


def graver(one: Lacking | None, other: Lacking | None) -> Lacking | None:
    """Return the graver of two consequences."""
    return one if other is None or isinstance(one, NeedsReload) else other


def _unsent(before: Description, now: Description) -> Iterator[str]:
    """Yield the reasons why rows changed without being sent, the gravest first."""
    yield from _changed_columns(before, now)
    yield from _changed_types(before, now)
    if before.publication and now.publication:
        yield from _changed_publication(before.publication, now.publication, same_server=before.major == now.major)
    if before.major == now.major:
        yield from _came_back(before, now)


def _changed_columns(before: Description, now: Description) -> Iterator[str]:
    was = {column.number: column for column in before.columns}
    gone = {name for _, name in now.former}
    if again := [c.name for c in now.columns if c.name in gone and c.number not in was]:
        yield f"{_columns(again)} dropped and added again, and earlier rows were sent with the former values"
    if renamed := [c.name for c in now.columns if c.number in was and was[c.number].name != c.name]:
        yield f"{_columns(renamed)} renamed, and earlier rows were sent with the former name"
    if added := [c.name for c in now.columns if c.number not in was and c.older_rows_have]:
        yield f"{_columns(added)} added with a default, and PostgreSQL does not send it for the rows that there were"
    if late := [c.name for c in now.columns if c.number in was and c.number in now.sent - before.sent]:
        yield f"{_columns(late)} not sent with earlier rows"


def _changed_types(before: Description, now: Description) -> Iterator[str]:
    rows = before.major == now.major
    for what, was, there in (
        ("a composite type got other attributes", _attributes(before, rows=rows), _attributes(now, rows=rows)),
        ("a label of an enum was renamed", _labels(before, rows=rows), _labels(now, rows=rows)),
    ):
        if any(was[key] != there[key] for key in was.keys() & there.keys()):
            yield f"{what}, and earlier rows were sent without that"


def _changed_publication(before: Publication, now: Publication, *, same_server: bool) -> Iterator[str]:
    if same_server and before.filter != now.filter:
        yield "the publication's row filter is another one, and rows that come or go with it are not sent"
    if same_server and not before.members & now.members:
        yield "the publication has it by another entry, and changes between the two were not sent"
    if missing := set(now.operations) - set(before.operations):
        words = {"i": "inserts", "u": "updates", "d": "deletes", "t": "truncates"}
        yield f"the publication did not send {', '.join(words[each] for each in 'iudt' if each in missing)} for a time"


def _came_back(before: Description, now: Description) -> Iterator[str]:
    """Yield the traces in the same server's catalog of changes that were undone, or that left no
    column different.
    """
    if before.type_row != now.type_row and before.owner == now.owner:
        yield "it had another name or schema for a time, and changes meanwhile are under that name or were not sent"
    was_toast, toast = before.toast, now.toast
    other_toast = was_toast and toast and was_toast != toast
    if before.files != now.files and before.altered == now.altered and other_toast and now.major >= _HAS_REPACK:
        yield "the table was rewritten: by REPACK (CONCURRENTLY), which changes no row, or by ALTER TABLE, and PostgreSQL does not send the rewritten rows"
    elif before.files != now.files and (before.altered != now.altered or other_toast):
        yield "ALTER TABLE rewrote the table, and PostgreSQL does not send the rewritten rows"
    if before.links and now.links and before.links != now.links:
        yield "it was no partition of its table for a time, and changes meanwhile were not sent"
    here = {(oid, linked) for oid, _, linked in before.partitions}
    if attached := {oid for oid, made_here, linked in now.partitions if not made_here and (oid, linked) not in here}:
        yield f"{len(attached)} {_plural('partition', attached)} attached, and PostgreSQL does not send the rows in there"
    if "f" in {before.replica_identity, now.replica_identity} and _made_again(before, now):
        yield "the unique index that is its message key was made again, and rows without it may have had one key"


def _unexplained(before: Description, now: Description) -> Iterator[str]:
    """Yield the changes that only a person can judge."""
    if before.type_row != now.type_row:
        yield "it has another owner; if it had another name for a time too, changes meanwhile are missing"
    if gone := {oid for oid, *_ in before.partitions} - {oid for oid, *_ in now.partitions}:
        yield f"{len(gone)} {_plural('partition', gone)} detached or dropped, and PostgreSQL does not send that the rows in there are gone"
    if before.row != now.row and _made_again(before, now):
        yield "its message key's index was made again; if it had replica identity full meanwhile, rows may have had one key"
    was, there = before.publication, now.publication
    if was and there and was.row != there.row and was.options == there.options:
        yield "the publication was altered and has the same options; if it had others for a time, changes meanwhile are missing"
    if was and there and set(was.operations) - set(there.operations):
        yield "the publication leaves out operations that it had, and their changes are missing"


def _made_again(before: Description, now: Description) -> bool:
    """Whether another index of the same columns is the key now."""
    was, there = before.key, now.key
    return was is not None and there is not None and was.columns == there.columns and was.identity != there.identity


def _key_columns(described: Description) -> frozenset[int] | None:
    return frozenset(described.key.columns) if described.key else None


def _schema(described: Description) -> frozenset[tuple[int, str, int, int]]:
    sent = described.sent
    return frozenset((c.number, c.name, c.type, c.modifier) for c in described.columns if c.number in sent)


def _attributes(described: Description, *, rows: bool) -> dict[int, set[tuple[int, str, int]]]:
    """Return each composite type's attributes. `rows`: also when the catalog's rows were written,
    which tells of names that were changed and changed back.
    """
    grouped: dict[int, set[tuple[int, str, int]]] = {}
    for oid, number, name, row in described.attributes:
        grouped.setdefault(oid, set()).add((number, name, row if rows else 0))
    return grouped


def _labels(described: Description, *, rows: bool) -> dict[int, tuple[str, int]]:
    return {oid: (text, row if rows else 0) for oid, text, row in described.labels}


def _columns(names: list[str]) -> str:
    return f"{'column' if len(names) == 1 else 'columns'} {', '.join(names)} {'was' if len(names) == 1 else 'were'}"


def _plural(noun: str, counted: Iterable[object]) -> str:
    return f"{noun} was" if len(list(counted)) == 1 else f"{noun}s were"
