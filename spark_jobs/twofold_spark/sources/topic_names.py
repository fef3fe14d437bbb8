"""Says which table a topic belongs to, and which topics are tables' topics. Pure.

A topic is `<prefix>.<schema>.<table>`. A name that is too long for Kafka ends in a digest instead.
Then the names come from the namespace of the topic's schema, which is complete at any length.
"""

from __future__ import annotations

import re

from twofold_avro.names import TopicNames, postgres_name, topic_of
from twofold_common import table_names
from twofold_spark.errors import SetupError
from twofold_spark.sources.registry import AvroSchema

_DIGEST = r"-[0-9a-f]{32}"
_LONGEST = 249


def parse_topic_name(topic: str, prefix: str, envelope: AvroSchema | None) -> tuple[str, str]:
    """Return schema and table, escaped as in the data contract.

    `to_postgres_names` is the inverse.
    """
    if len(topic) == _LONGEST and re.search(f"{_DIGEST}$", topic):
        if envelope is None:
            raise SetupError(
                f"the registry has no subject {topic}-value, which alone has the table's name: "
                "give --registry the connector's registry"
            )
        _, schema, name = envelope["namespace"].rsplit(".", 2)
    else:
        schema, _, name = topic.removeprefix(f"{prefix}.").partition(".")
    return schema, name


def to_postgres_names(table: str) -> tuple[str, str]:
    """Return schema and name of a mirrored table (`schema.name`) as PostgreSQL has them."""
    schema, _, name = table.partition(".")
    return postgres_name(schema), postgres_name(name)


def reload_command(table: object) -> str:
    """Return the shell's command that reloads a mirrored table, which reads as `schema.name`."""
    return table_names.reload_command(*to_postgres_names(str(table)))


def subject_of(prefix: str, table: str) -> str:
    """Return the registry's subject of a mirrored table (`schema.name`)."""
    return f"{topic_of(prefix, *to_postgres_names(table))}-value"


def is_table_topic(topic: str, prefix: str) -> bool:
    """Whether a commit record's range is of a table: not of logical messages or outbox events."""
    names = TopicNames(prefix)
    return topic != names.messages and not topic.startswith(names.events)


def find_commits_beside(topic: str) -> str | None:
    """Return the topic of commit records beside which this one is a connector's own by its name;
    None if it has the name of no such topic.
    """
    names = TopicNames(topic.rpartition(".")[0])
    return names.commits if topic in names.own else None


def table_topics_pattern(prefix: str) -> str:
    """Make the pattern of all tables' topics.

    The connector's own topics have one part behind the prefix, and no digest.
    """
    return rf"{re.escape(prefix)}\.(?:[^.]+\.[^.]+|[^.]+{_DIGEST})"
