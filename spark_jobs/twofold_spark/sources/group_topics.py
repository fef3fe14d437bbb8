"""Reads what is new in the topics of a group's members, frontiers and commit records, all at once;
and finds the members by the frontiers that their connectors have written.

First it asks Kafka how far the topics are decided, the frontiers' topics before those of the commit
records: what a frontier names is then among the commit records that are read. Where no end has
moved nothing is read. All that is new comes by one read of Spark, whose planning costs more than a
round's few records do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as f

from twofold_avro.names import TopicNames
from twofold_spark.errors import Refused, SetupError
from twofold_spark.sources import decoding, kafka_reader
from twofold_spark.sources.kafka_client import UNKNOWN_TOPIC, Kafka, KafkaAdmin, list_topics
from twofold_spark.sources.member_topics import MemberTopics
from twofold_spark.sources.registry import Registry, Subject

_FEW_OFFSETS = 5_000
"""So few come as one task, and their commit records with their ranges."""
_OF_FRONTIER = ("sequence", "lsn", "seen", "in_doubt", "gid_patterns")


class GroupTopics:
    """The topics of all members of a group, read_committed."""

    def __init__(self, admin: KafkaAdmin, registry: Registry, members: Mapping[str, MemberTopics]) -> None:
        self._admin = admin
        self._registry = registry
        self._members = members
        self._frontiers = {TopicNames(prefix).frontiers: prefix for prefix in members}
        self._commits = {TopicNames(prefix).commits: prefix for prefix in members}
        self._decoding: _Decoding | None = None
        """The last one: mostly the next read is of the same topics, with the same versions."""
        self._ends: Mapping[str, int] = {}
        """By topic, what was read; no topic has more than one partition."""

    def read(self, spark: SparkSession) -> bool:
        """Hand each member what is new of it. Return whether that was all: it is."""
        subjects = {topic: self._find_subject(topic) for topic in (*self._frontiers, *self._commits)}
        ends = {**self._list_ends(self._frontiers), **self._list_ends(self._commits)}
        if ends == self._ends:
            return True
        firsts = {}
        for prefix, member in self._members.items():
            names = TopicNames(prefix)
            firsts[names.frontiers] = member.find_first_frontier(ends[names.frontiers])
            firsts[names.commits] = member.find_first_commit(ends[names.commits])
        rows = self._read(spark, subjects, firsts, ends)
        for prefix, member in self._members.items():
            member.take_frontiers(rows[TopicNames(prefix).frontiers])
            member.take_commits(rows[TopicNames(prefix).commits])
        self._ends = ends
        return True

    def _find_subject(self, topic: str, *, refreshed: bool = False) -> Subject:
        name = f"{topic}-value"
        subject = self._registry.refresh_subject(name) if refreshed else self._registry.find_subject(name)
        if subject is None:
            if topic in self._frontiers:
                raise SetupError(
                    f"the registry has no subject {name}: run the connector of {self._frontiers[topic]} with the [group] of all members"
                )
            raise SetupError(f"the registry has no subject {name}: give --registry the connector's registry")
        return subject

    def _list_ends(self, topics: Iterable[str]) -> dict[str, int]:
        return {topic: end for (topic, _), end in self._admin.list_stable_offsets((t, 0) for t in topics).items()}

    def _read(
        self, spark: SparkSession, subjects: Mapping[str, Subject], firsts: Mapping[str, int], ends: Mapping[str, int]
    ) -> dict[str, list[Row]]:
        """Read these offsets of the topics; return what is decoded, by topic."""
        due = {topic: first for topic, first in firsts.items() if first < ends[topic]}
        if not due:
            return {topic: [] for topic in firsts}
        records = kafka_reader.read_single_partitions(spark, self._admin.kafka, due, ends)
        is_small = sum(ends[topic] - max(first, 0) for topic, first in due.items()) <= _FEW_OFFSETS
        if is_small:
            records = records.coalesce(1)
        try:
            found = self._decode(records, {topic: subjects[topic] for topic in due}, whole=is_small)
        except Refused:  # mostly the registry has a newer version
            newer = {topic: self._find_subject(topic, refreshed=True) for topic in due}
            found = self._decode(records, newer, whole=is_small)
        return {topic: found[topic] for topic in firsts}

    def _decode(self, records: DataFrame, subjects: Mapping[str, Subject], *, whole: bool) -> dict[str, list[Row]]:
        """Decode each record by its topic's subject; return the rows by topic."""
        if self._decoding is None or self._decoding.made_for != (subjects, whole):
            self._decoding = _Decoding(subjects, self._commits, whole=whole)
        found: dict[str, list[Row]] = defaultdict(list)
        for topic, offset, *made in self._decoding.select(records).toLocalIterator():
            if (row := next((each for each in made if each is not None), None)) is None:
                raise Refused(
                    f"the record at offset {offset} of {topic} cannot be decoded",
                    at_stake="global cuts: what it says of other sources is not known",
                    repair=f"check the registry's subject {topic}-value, and find who else writes to the topic",
                )
            found[topic].append(row)
        return found


class _Decoding:
    """The expressions that decode the records of these topics, built once.

    PySpark asks the JVM hundreds of times while it builds them. Subjects with the same versions are
    mostly one for all members.
    """

    def __init__(self, subjects: Mapping[str, Subject], commits: Collection[str], *, whole: bool) -> None:
        """`commits`: the topics of commit records; `whole`: they are wanted with their ranges."""
        self.made_for = subjects, whole
        alike: dict[tuple[bool, frozenset[int]], tuple[Subject, list[str]]] = {}
        for topic, subject in subjects.items():
            alike.setdefault((topic in commits, subject.ids), (subject, []))[1].append(topic)
        self._decoded, self._selected = ([f.col("topic"), f.col("offset")] for _ in range(2))
        for number, ((is_commit, _), (subject, names)) in enumerate(alike.items()):
            name = f"r{number}"
            value = f.when(f.col("topic").isin(*names), f.col("value"))
            self._decoded.append(decoding.decode_record(value, subject).alias(name))
            columns = (
                _select_commit(name, whole=whole) if is_commit else [f.col(f"{name}.{each}") for each in _OF_FRONTIER]
            )
            row = f.struct("offset", *columns)
            self._selected.append(f.when(f.col(f"{name}.sequence").isNotNull(), row).alias(name))
        self._wanted = f.col("value").isNotNull() | f.col("topic").isin(*commits)

    def select(self, records: DataFrame) -> DataFrame:
        """Select each record's topic and offset, and a row for each kind, all null but one."""
        return records.where(self._wanted).select(*self._decoded).select(*self._selected)


def _select_commit(record: str, *, whole: bool) -> list[Column]:
    """Select what a global cut needs; `whole`: and what the member's mirror needs besides."""
    names = (
        "sequence",
        "applied_lsn",
        "stream_id",
        "rows",
        "kind",
        "backfilling",
        *(("transactions", "ranges", "stale", "skipped") if whole else ()),
    )
    return [
        *(f.col(f"{record}.{name}") for name in names),
        f.unix_micros(f"{record}.committed_at").alias("us"),
        f.size(f"{record}.ranges").alias("range_count"),
        f.expr(f"IF({record}.kind = 'backfill', {record}.ranges.topic, array())").alias("loaded_topics"),
        f.col(f"{record}.prepared.gid").alias("gids"),
        f.col(f"{record}.prepared.global_id").alias("global_ids"),
    ]


_FRONTIERS = TopicNames("").frontiers
_RECORD = "Frontier"


class Membership(NamedTuple):
    """A connector's group, by its last frontier."""

    group: str
    members: frozenset[str]
    """The prefixes of all members, the source's own included."""


def find_members(spark: SparkSession, kafka: Kafka, registry: Registry, group: str) -> tuple[str, ...]:
    """Return the topic prefixes of a group's members, sorted."""
    topics = {name for name in list_topics(spark, kafka) if name.endswith(_FRONTIERS)}
    lasts = {topic.removesuffix(_FRONTIERS): _read_last(spark, kafka, registry, topic) for topic in topics}
    found = {prefix: last for prefix, last in lasts.items() if last is not None}
    return resolve_members(group, found)


def resolve_members(group: str, found: Mapping[str, Membership]) -> tuple[str, ...]:
    """Return the members of a group, by what each connector says.

    A member that was taken out of the group still has its last frontier, which the others' do not
    confirm.
    """
    said = {prefix: each.members for prefix, each in found.items() if each.group == group}
    if not said:
        known = ", ".join(sorted({each.group for each in found.values()}))
        raise SetupError(
            f"no connector of this Kafka has written a frontier of the source group {group}, "
            + (f"the groups there are {known}" if known else "nor of any other group")
            + ": correct --source-group, or run the connectors of all members with this [group]"
        )
    agreed = {members for members in said.values() if all(said.get(prefix) == members for prefix in members)}
    if len(agreed) == 1:
        return tuple(sorted(agreed.pop()))
    lists = "; ".join(f"{prefix} says {', '.join(sorted(members))}" for prefix, members in sorted(said.items()))
    silent = sorted(set().union(*said.values()) - said.keys())
    raise SetupError(
        f"the connectors of the source group {group} do not agree on its members: {lists}"
        + (f"; {', '.join(silent)} has written no frontier of it" if silent else "")
        + ": run all of them with the same [group], or give a --prefix for each member"
    )


def _read_last(spark: SparkSession, kafka: Kafka, registry: Registry, topic: str) -> Membership | None:
    """Return what the last record of a topic says; None if it has none, has other records, or was
    deleted since it was listed, as that of a connector of another group may be.
    """
    subject = registry.find_subject(f"{topic}-value")
    if subject is None or subject.latest.get("name") != _RECORD:
        return None
    records = kafka_reader.read_from(spark, kafka, topic, kafka_reader.EARLIEST).where("value IS NOT NULL")
    decoded = records.select(decoding.decode_record(records["value"], subject).alias("r"), "offset")
    last = decoded.orderBy(decoded["offset"].desc()).select("r.group", "r.seen.prefix")
    try:
        row = kafka_reader.wait_for_topic(last.first)
    except Exception as error:
        if UNKNOWN_TOPIC not in str(error):
            raise
        return None  # a member that is missing is refused by `resolve_members`
    if row is None or row["group"] is None:
        return None
    return Membership(row["group"], frozenset(row["prefix"]) | {topic.removesuffix(_FRONTIERS)})
