"""A table's shape: the one description that `twofold.source.catalog` makes, and that schemas and
the transcoder read.

Pure, frozen, hashable values without dependencies, so that two versions of a table are compared
with `==`. Comments do not count: they say nothing of the rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

TypeKind = Literal["base", "domain", "enum", "composite", "range", "multirange", "array", "pseudo"]
ReplicaIdentity = Literal["default", "index", "full", "nothing"]
PolicyAction = Literal["drop", "null", "redact", "hash"]


@dataclass(frozen=True, slots=True)
class TypeShape:
    """A PostgreSQL type with its modifier, resolved from the catalog."""

    oid: int
    namespace: str
    name: str
    kind: TypeKind = "base"
    typmod: int = -1
    element: TypeShape | None = None
    """An array's element, a domain's base type, a range's subtype, or a multirange's range."""
    labels: tuple[str, ...] = ()
    """An enum's labels, in the enum's order."""
    fields: tuple[tuple[str, TypeShape], ...] = ()
    """A composite's fields."""


@dataclass(frozen=True, slots=True)
class ColumnShape:
    """A published column, in the order in which pgoutput sends it."""

    name: str
    type: TypeShape
    in_key: bool = False
    """Part of the Kafka message key."""
    in_identity: bool = False
    """Part of the replica identity as pgoutput flags it: sent in 'K' tuples."""
    optional: bool = False
    """Optional in the row although it is in the key, because earlier rows' keys did not have it."""
    policy: PolicyAction | None = None
    """What the data policy does with its values. A hashed column has the type text."""
    hashed_with: str | None = None
    """Of a hashed column in the message key: what tells the key of hashes from others."""
    rule: str | None = field(default=None, compare=False)
    """The full name whose rule of the data policy holds for it. Empty: it has none, and is known to
    be none of the hidden columns."""
    comment: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class TableShape:
    """One version of a published table. Keyless when no column is in the key."""

    oid: int
    schema: str
    table: str
    columns: tuple[ColumnShape, ...]
    replica_identity: ReplicaIdentity = "default"
    comment: str | None = field(default=None, compare=False)

    @property
    def key(self) -> tuple[ColumnShape, ...]:
        return tuple(c for c in self.columns if c.in_key)

    @property
    def written(self) -> tuple[ColumnShape, ...]:
        """The columns that the rows in the topic have."""
        return tuple(c for c in self.columns if c.policy != "drop")

    @property
    def policy(self) -> dict[str, PolicyAction]:
        """What the data policy does with columns, by their names."""
        return {c.name: c.policy for c in self.columns if c.policy is not None}

    @property
    def keyless(self) -> bool:
        return not any(c.in_key for c in self.columns)
