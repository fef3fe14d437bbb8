"""Says which changelog table a topic's changes belong to, and what is known of its topics.

A table has the changes of one topic, or, if it is sharded, of one topic of each member of a source
group. The tables lie where the group's mirror has them: a sharded one in the catalog of the group,
any other one in that of its member. The changelog of one prefix has one catalog.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from twofold_spark.errors import SetupError, TableRefused
from twofold_spark.session import member_catalog
from twofold_spark.sinks import iceberg_tables
from twofold_spark.sinks.sharding import Sharding
from twofold_spark.sources.kafka_client import TopicState
from twofold_spark.sources.registry import Registry, Subject
from twofold_spark.sources.topic_names import find_commits_beside, parse_topic_name, table_topics_pattern

ONLY = ""
"""What stands in place of a member in a table that one topic has."""


class MemberPartition(NamedTuple):
    """A partition of one of a table's topics."""

    member: str
    """The topic's prefix; `ONLY` in a table that is not sharded."""
    partition: int


MemberOffsets = Mapping[MemberPartition, int]


@dataclass(frozen=True, slots=True)
class ChangelogTable:
    """A table of changes."""

    name: str
    """Its topic; of a sharded table `*.schema.table`."""
    label: str
    """The table's name in the source."""
    catalog: str
    path: str
    """The table's name in the catalog."""
    is_sharded: bool
    elsewhere: tuple[tuple[str, str], ...]
    """Where its changes are if they were begun with other options: catalogs, and full names."""

    @property
    def full_name(self) -> str:
        """The table's name with the catalog, quoted."""
        return iceberg_tables.full_name(self.catalog, self.path)

    def refuse(self, what: str, at_stake: str) -> TableRefused:
        """Make the refusal of changes that only a new table can have."""
        return TableRefused(
            what,
            at_stake=at_stake,
            repair=f"keep the table under another name (ALTER TABLE {self.full_name} RENAME TO ...) and start again: "
            "a new table begins where Kafka does",
        )

    def refuse_type(self, what: str) -> TableRefused:
        """Make the refusal of a column whose type the table cannot have."""
        refused = self.refuse(what, "the column's values")
        if not self.is_sharded:
            return refused
        return TableRefused(
            what,
            at_stake=refused.at_stake,
            repair=f"give the column one type in all shards, or leave {self.label} out of --sharded; if the table is "
            f"there, {refused.repair}",
        )

    def refuse_move(self, present: str) -> TableRefused:
        """Make the refusal of a table whose changes other options have put elsewhere."""
        return TableRefused(
            f"{present} has changes of {self.label}, and was made with another --sharded or other prefixes",
            at_stake="one table with all changes: those that are there would stay behind",
            repair=f"give the former options; or keep that table under another name (ALTER TABLE {present} RENAME TO "
            "...) and start again: a new table begins where Kafka does",
        )

    def refuse_case(self, columns: Sequence[str]) -> TableRefused:
        """Make the refusal of columns that are one to Spark, which ignores case."""
        return TableRefused(
            f"{self.label} has columns that differ in case alone: {', '.join(columns)}",
            at_stake="the values of one of the two",
            repair="rename the column in the source, delete the subject of the table's topic (<topic>-value), whose versions "
            "have both, and start the connector again, which registers it; then --unreadable skip puts the changes that only "
            "those versions describe into the quarantine table",
        )

    def refuse_other_topic(self, topic: str) -> TableRefused:
        """Make the refusal of a table that was made for another topic."""
        return TableRefused(
            f"the table {self.full_name} has the changes of the topic {topic}, and not those of {self.name}",
            at_stake="the changes of both: they would be mixed, and some passed over",
            repair="give the changelog of each prefix a catalog of its own (--warehouse, --catalog-uri); or keep the table under "
            f"a name that no source table has (ALTER TABLE {self.full_name} RENAME TO ...) and start again: a new table "
            "begins where Kafka does",
        )


@dataclass(frozen=True, slots=True)
class TableTopics:
    """A table, and its topics as they are now."""

    table: ChangelogTable
    topics: Mapping[str, TopicState]
    """By member."""

    @property
    def name(self) -> str:
        return self.table.name

    @property
    def ends(self) -> MemberOffsets:
        return {MemberPartition(m, n): end for m, topic in self.topics.items() for n, end in topic.ends.items()}

    @property
    def topic_ids(self) -> dict[str, str]:
        """The topics' ids by member, without those that have none."""
        return {member: topic.id for member, topic in self.topics.items() if topic.id}


class TableFinder:
    """The tables of all topics that were seen; one thread may use it."""

    def __init__(self, registry: Registry, prefixes: Sequence[str], sharding: Sharding, catalog: str) -> None:
        self._registry = registry
        self._patterns = {prefix: re.compile(table_topics_pattern(prefix)) for prefix in prefixes}
        self._sharding = sharding
        self._catalog = catalog
        self._found: dict[str, tuple[str, ChangelogTable]] = {}
        """By topic, the member and the table."""
        self._of_connectors: dict[str, bool] = {}
        """By topic with such a name, whether it is no table's."""

    @property
    def pattern(self) -> str:
        return "|".join(pattern.pattern for pattern in self._patterns.values())

    def group(self, topics: Mapping[str, TopicState]) -> dict[str, TableTopics]:
        """Group the topics by table, by the table's name.

        A topic without a record, which may have no subject yet, has no table.
        """
        found: dict[str, TableTopics] = {}
        for name, topic in sorted(topics.items()):
            if name in self._found or (any(topic.ends.values()) and not self._is_of_connector(name)):
                member, table = self._find(name)
                state = found.get(table.name, TableTopics(table, {}))
                found[table.name] = TableTopics(table, {**state.topics, member: topic})
        return found

    def list_gone(self, topics: Mapping[str, TopicState]) -> dict[str, str]:
        """List the tables of which a topic is not there any more, with the topic."""
        return {table.name: name for name, (_, table) in self._found.items() if name not in topics}

    def find(self, name: str) -> ChangelogTable:
        """Return a table of a topic that was seen, by the table's name."""
        return next(table for _, table in self._found.values() if table.name == name)

    def _is_of_connector(self, topic: str) -> bool:
        """Whether the topic is one that a connector has for itself.

        That of the prefix `bank.east` is named as one of the prefix `bank` and the schema `east`.
        """
        if (commits := find_commits_beside(topic)) is None:
            return False
        if topic not in self._of_connectors:
            subject = self._registry.find_subject(f"{commits}-value")
            name = (subject.latest.get("namespace"), subject.latest.get("name")) if subject is not None else None
            self._of_connectors[topic] = name == ("twofold", "Commit")
        return self._of_connectors[topic]

    def _find(self, topic: str) -> tuple[str, ChangelogTable]:
        if topic not in self._found:
            self._found[topic] = self._name_table(topic)
        return self._found[topic]

    def _name_table(self, topic: str) -> tuple[str, ChangelogTable]:
        prefix = max((p for p, pattern in self._patterns.items() if pattern.fullmatch(topic)), key=len)
        schema, name = parse_topic_name(topic, prefix, find_subject(self._registry, topic).latest)
        label, path = f"{schema}.{name}", f"{schema}_changelog.{name}"
        of_group, own = len(self._patterns) > 1, member_catalog(self._catalog, prefix)
        is_sharded = of_group and self._sharding.covers(label)
        if is_sharded:
            catalog, others = self._catalog, [member_catalog(self._catalog, each) for each in self._patterns]
        else:
            catalog, others = (own, [self._catalog]) if of_group else (self._catalog, [own])
        elsewhere = tuple((other, iceberg_tables.full_name(other, path)) for other in others)
        found = ChangelogTable(f"*.{label}" if is_sharded else topic, label, catalog, path, is_sharded, elsewhere)
        return prefix if is_sharded else ONLY, found


def find_subject(registry: Registry, topic: str, ids: frozenset[int] = frozenset()) -> Subject:
    """Return a topic's subject, with these schema ids as far as the registry has them."""
    name = f"{topic}-value"
    subject = registry.find_with_ids(name, ids)
    if subject is None:
        raise SetupError(f"the registry has no subject {name}: give --registry the connector's registry")
    return subject
