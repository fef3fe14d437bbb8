"""Registers the schemas of the bookkeeping's records, and holds their ids."""

from __future__ import annotations

from dataclasses import dataclass

from twofold.kafka.names import Names
from twofold.kafka.schema_registry import Registry, value_subject
from twofold_avro.schemas import canonical, fixed


@dataclass(frozen=True, slots=True)
class SchemaIds:
    """The registry's ids of the fixed records."""

    commit: int
    progress: int
    pin: int
    prepared: int
    frontier: int | None = None
    """None: the connector is in no source group."""


def register_fixed(registry: Registry, names: Names, *, in_group: bool = False) -> SchemaIds:
    """Register the fixed records' schemas.

    The progress topic holds two kinds of records, so the pin's subject contains its name too.
    """
    return SchemaIds(
        commit=registry.register(value_subject(names.commits), canonical(fixed("commit"))),
        progress=registry.register(value_subject(names.progress), canonical(fixed("progress"))),
        pin=registry.register(f"{names.progress}-twofold.Pin", canonical(fixed("pin"))),
        prepared=registry.register(value_subject(names.prepared), canonical(fixed("prepared"))),
        frontier=registry.register(value_subject(names.frontiers), canonical(fixed("frontier"))) if in_group else None,
    )
