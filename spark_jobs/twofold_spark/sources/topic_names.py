"""Which table a topic is of, and which topics are tables'. Pure.

A topic is `<prefix>.<schema>.<table>`. One that Kafka would find too long ends in a digest of itself instead; then the
names are read from the namespace of its schema, which is whole whatever its length.
"""

from __future__ import annotations

import re

from twofold_avro.names import postgres_name
from twofold_spark.errors import MissingGround
from twofold_spark.sources.registry import Avro

_DIGEST = r"-[0-9a-f]{32}"
_LONGEST = 249


def names_of(topic: str, prefix: str, envelope: Avro | None) -> tuple[str, str]:
    """Schema and table, escaped as the contract escapes them; `postgres_name` is the inverse."""
    if len(topic) == _LONGEST and re.search(f"{_DIGEST}$", topic):
        if envelope is None:
            raise MissingGround(f"the registry has no subject {topic}-value, which alone has the table's name")
        _, schema, name = envelope["namespace"].rsplit(".", 2)
    else:
        schema, _, name = topic.removeprefix(f"{prefix}.").partition(".")
    return schema, name


def at_source(table: str) -> tuple[str, str]:
    """Schema and name of a table of the mirror (`schema.name`), as PostgreSQL has them."""
    schema, _, name = table.partition(".")
    return postgres_name(schema), postgres_name(name)


def topics_pattern(prefix: str) -> str:
    """All topics of tables; the connector's own have one part after the prefix, and no digest."""
    return rf"{re.escape(prefix)}\.(?:[^.]+\.[^.]+|[^.]+{_DIGEST})"
