"""`Description`: a table as PostgreSQL's catalog has it at one moment.

Objects are known by their oids and columns by their numbers; names are attributes. The `xmin` of a
catalog's row says when the row was last written: it changes also if somebody restored the former
name. A description has only the values that `staleness` needs, because each pin has one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any, Self

from twofold.descriptions.hidden_columns import CatalogColumn

FORMAT = 4
"""The format of the text in pins. A pin with another format has no description."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column that is not dropped."""

    number: int
    name: str
    type: int
    modifier: int
    generated: str
    older_rows_have: bool
    """Whether rows older than the column have a value in it: its constant default."""
    row: int
    """The xmin of the column's row in pg_attribute: each RENAME writes that row."""


@dataclass(frozen=True, slots=True)
class KeyIndex:
    """A unique index without expressions or a predicate."""

    index: int
    constraint: int
    """The constraint that the index serves; 0 without one. REINDEX CONCURRENTLY makes another index
    of the same constraint.
    """
    usable: bool
    """Whether the index can be the message key under replica identity full."""
    primary: bool
    replica_identity: bool
    columns: tuple[int, ...]

    @property
    def identity(self) -> int:
        return self.constraint or self.index


@dataclass(frozen=True, slots=True)
class Publication:
    """A publication, as it has the table."""

    oid: int
    row: int
    """The xmin of the publication's row: every ALTER PUBLICATION ... SET (...), OWNER and RENAME
    writes it.
    """
    owner: int
    name: str
    operations: str
    via_root: bool
    generated: str
    members: frozenset[int]
    """The oids of the rows that put the table into the publication, for a partition also its
    ancestors' rows; the publication's own oid if it has all tables.
    """
    filter: str | None
    """A digest of the row filter."""
    columns: frozenset[int] | None
    """The numbers of the columns in the column list."""

    @property
    def options(self) -> tuple[str, int, str, bool, str]:
        return self.name, self.owner, self.operations, self.via_root, self.generated


@dataclass(frozen=True, slots=True)
class Description:
    """The whole description."""

    major: int
    """The server's major version: pg_upgrade writes all rows of the catalog again."""
    oid: int
    owner: int
    kind: str
    replica_identity: str
    row: int
    """The xmin of the table's row in pg_class."""
    type_row: int
    """The xmin of the row type's row in pg_type: RENAME, SET SCHEMA and OWNER write that row;
    TRUNCATE, VACUUM FULL and GRANT do not.
    """
    toast: int
    files: str
    """A digest of the table's files, its partitions' included."""
    altered: str
    """A digest of when each column was last changed."""
    columns: tuple[Column, ...]
    keys: tuple[KeyIndex, ...]
    """The unique indexes, in the order in which they are taken for the message key."""
    attributes: frozenset[tuple[int, int, str, int]]
    """The attributes of the composite types in the columns: type, number, name, and the xmin of the
    row in pg_attribute.
    """
    labels: frozenset[tuple[int, str, int]]
    """The labels of the enums in the columns: oid, text, and the xmin of the row in pg_enum."""
    partitions: frozenset[tuple[int, bool, int]]
    """The table's partitions, whether each was made as a partition, and the xmin of its row in
    pg_inherits.
    """
    links: tuple[int, ...]
    """The xmin of each row in pg_inherits by which the table is a partition, the nearest first:
    ATTACH PARTITION makes another row.
    """
    publication: Publication | None
    former: frozenset[tuple[int, str]] = frozenset()
    """The numbers and names of dropped columns that rows of the topic may have. The catalog has no
    such names: `follow` keeps them.
    """

    def follow(self, before: Self | None) -> Self:
        """Return this description with the columns that were dropped since an earlier one."""
        if before is None or before.oid != self.oid:
            return self
        numbers = {column.number for column in self.columns}
        dropped = {(each.number, each.name) for each in before.columns if each.number not in numbers}
        return replace(self, former=self.former | before.former | dropped)

    def loaded_since(self, first: Self) -> Self:
        """Return this description for a topic whose rows are all newer than the first one."""
        return replace(self, former=self.former - first.former)

    @property
    def partition_oids(self) -> frozenset[int]:
        return frozenset(oid for oid, _, _ in self.partitions)

    @property
    def key(self) -> KeyIndex | None:
        """The index that is the message key."""
        match self.replica_identity:
            case "d":
                return next((key for key in self.keys if key.primary), None)
            case "i":
                return next((key for key in self.keys if key.replica_identity), None)
            case "f":
                sent = self.sent
                return next((key for key in self.keys if key.usable and sent.issuperset(key.columns)), None)
        return None

    @property
    def usable_keys(self) -> tuple[frozenset[str], ...]:
        """The columns of each index that can be the message key under replica identity full, in the
        order in which they are taken.
        """
        names = {column.number: column.name for column in self.columns}
        return tuple(frozenset(names[number] for number in key.columns) for key in self.keys if key.usable)

    @property
    def catalog_columns(self) -> tuple[CatalogColumn, ...]:
        is_listed = self.publication is not None and self.publication.columns is not None
        return tuple(
            CatalogColumn(each.number, each.name, each.type, each.row, bool(each.generated) or is_listed)
            for each in self.columns
        )

    @property
    def sent(self) -> frozenset[int]:
        """The numbers of the columns that the stream has."""
        listed = self.publication.columns if self.publication else None
        generated = {"", self.publication.generated.replace("n", "")} if self.publication else {""}
        return frozenset(
            column.number
            for column in self.columns
            if (column.generated in generated if listed is None else column.number in listed)
        )

    def to_text(self) -> str:
        """Return the text for the pin."""
        *own, columns, keys, attributes, labels, partitions, links, publication, former = _values(self)
        own += [[*map(_values, columns)], [*map(_values, keys)], attributes, labels, partitions, links]
        own += [publication and _values(publication), former]
        return _encode([FORMAT, *own])

    @classmethod
    def from_text(cls, text: str | None) -> Self | None:
        """Return the description in a pin; None if the pin has none, or has another format."""
        found = json.loads(text) if text and text.startswith("[") else None
        if not found or found[0] != FORMAT:
            return None
        return cls._of_values(found[1:])

    @classmethod
    def from_json(cls, found: Mapping[str, Any], publication: str) -> Self:
        """Return the description in the JSON of `source.table_descriptions`, of one publication."""
        own = next((each for each in found["publications"] if each["name"] == publication), None)
        columns = [{**each, "older_rows_have": each["default"] is not None} for each in found["columns"]]
        parts = {
            "columns": [_in_order(Column, each) for each in columns],
            "keys": [_in_order(KeyIndex, each) for each in found["keys"]],
            "publication": _in_order(Publication, own) if own and _is_sent(found, own) else None,
            "former": (),
        }
        return cls._of_values(_in_order(cls, {**found, **parts}))

    @classmethod
    def _of_values(cls, values: Iterable[Any]) -> Self:
        """Return the description of its fields' values as JSON has them."""
        *own, columns, keys, attributes, labels, partitions, links, publication, former = values
        own += [tuple(Column(*each) for each in columns)]
        own += [tuple(KeyIndex(*[*each, tuple(numbers)]) for *each, numbers in keys)]
        own += [_tuples(attributes), _tuples(labels), _tuples(partitions), tuple(links)]
        own += [publication and _published(*publication), _tuples(former)]
        return cls(*own)


_NAMES: dict[type, list[str]] = {
    kind: [each.name for each in fields(kind)] for kind in (Column, KeyIndex, Publication, Description)
}
_FIELDS = {kind: attrgetter(*names) for kind, names in _NAMES.items()}
_encode = json.JSONEncoder(separators=(",", ":"), default=sorted).encode


def _values(described: Column | KeyIndex | Publication | Description) -> tuple[Any, ...]:
    """Return the values of the fields. `astuple` would copy each of them, which takes long."""
    values: tuple[Any, ...] = _FIELDS[type(described)](described)
    return values


def _in_order(kind: type, found: Mapping[str, Any]) -> list[Any]:
    """Return the values of the kind's fields, in their order."""
    return [found[name] for name in _NAMES[kind]]


def _is_sent(found: Mapping[str, Any], own: Mapping[str, Any]) -> bool:
    """Whether a publication sends changes of this table under the table's own name: an unlogged
    table may be in the publication of a schema, and of a root and its partitions it sends one.
    """
    is_hidden = own["by_parent"] if own["via_root"] else found["kind"] == "p"
    return found["persistence"] == "p" and not is_hidden


def _published(*values: Any) -> Publication:
    """Return the publication of values as JSON has them."""
    *own, members, where, columns = values
    listed = None if columns is None else frozenset(columns)
    return Publication(*[*own, frozenset(members), where, listed])


def _tuples(values: Iterable[Iterable[Any]]) -> frozenset[Any]:
    return frozenset(map(tuple, values))
