"""Registers the schemas of the sink's own records, and holds their ids."""

from __future__ import annotations

from dataclasses import dataclass

from twofold.sink.names import Names
from twofold.sink.schema_registry import Registry, value_subject
from twofold_avro.schemas import canonical, fixed


@dataclass(frozen=True, slots=True)
class SchemaIds:
    """The registry's ids of the fixed records."""

    commit: int
    progress: int
    pin: int
    prepared: int


def register_fixed(registry: Registry, names: Names) -> SchemaIds:
    """Register the fixed records' schemas.

    The progress topic holds two kinds of records, so the pin's subject contains its name too.
    """
    return SchemaIds(
        commit=registry.register(value_subject(names.commits), canonical(fixed("commit"))),
        progress=registry.register(value_subject(names.progress), canonical(fixed("progress"))),
        pin=registry.register(f"{names.progress}-twofold.Pin", canonical(fixed("pin"))),
        prepared=registry.register(value_subject(names.prepared), canonical(fixed("prepared"))),
    )
