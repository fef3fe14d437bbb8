"""Reads what is new in the topics of a group's members, frontiers and commit records, all at once.

First it asks Kafka how far the topics are decided, the frontiers' topics before those of the commit
records: what a frontier names is then among the commit records that are read. Where no end has
moved nothing is read. All that is new comes by one read of Spark, whose planning costs more than a
round's few records do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as f

from twofold_avro.names import TopicNames
from twofold_spark.errors import Refused, SetupError
from twofold_spark.sources import decoding, kafka_reader
from twofold_spark.sources.kafka_client import Kafka, list_stable_offsets, open_admin
from twofold_spark.sources.member_topics import MemberTopics
from twofold_spark.sources.registry import Registry, Subject

_FEW_OFFSETS = 5_000
"""So few come as one task, and their commit records with their ranges."""


class GroupTopics:
    """The topics of all members of a group, read_committed."""

    def __init__(self, kafka: Kafka, registry: Registry, members: Mapping[str, MemberTopics]) -> None:
        self._kafka = kafka
        self._registry = registry
        self._members = members
        self._frontiers = {TopicNames(prefix).frontiers: prefix for prefix in members}
        self._commits = {TopicNames(prefix).commits: prefix for prefix in members}
        self._admin: Any = None
        self._ends: Mapping[str, int] = {}
        """By topic, what was read; no topic has more than one partition."""

    def read(self, spark: SparkSession) -> bool:
        """Hand each member what is new of it. Return whether that was all: it is."""
        subjects = {topic: self._find_subject(topic) for topic in (*self._frontiers, *self._commits)}
        ends = {**self._list_ends(spark, self._frontiers), **self._list_ends(spark, self._commits)}
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
            member.take_commits(spark, rows[TopicNames(prefix).commits])
        self._ends = ends
        return True

    def close(self) -> None:
        if self._admin is not None:
            self._admin.close()

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

    def _list_ends(self, spark: SparkSession, topics: Iterable[str]) -> dict[str, int]:
        """Return where each topic's last stable offset is."""
        self._admin = self._admin or open_admin(spark, self._kafka)
        ends = list_stable_offsets(spark, self._admin, [(topic, 0) for topic in topics])
        return {topic: end for (topic, _), end in ends.items()}

    def _read(
        self,
        spark: SparkSession,
        subjects: Mapping[str, Subject],
        firsts: Mapping[str, int],
        ends: Mapping[str, int],
    ) -> dict[str, list[Row]]:
        """Read these offsets of the topics; return what is decoded, by topic."""
        due = {topic: first for topic, first in firsts.items() if first < ends[topic]}
        if not due:
            return {topic: [] for topic in firsts}
        records = kafka_reader.read_single_partitions(spark, self._kafka, due, ends)
        is_small = sum(ends[topic] - max(first, 0) for topic, first in due.items()) <= _FEW_OFFSETS
        if is_small:
            records = records.coalesce(1)
        records = records.where(f.col("value").isNotNull() | f.col("topic").isin(*self._commits))
        try:
            found = self._decode(records, {topic: subjects[topic] for topic in due}, whole=is_small)
        except Refused:  # mostly the registry has a newer version
            newer = {topic: self._find_subject(topic, refreshed=True) for topic in due}
            found = self._decode(records, newer, whole=is_small)
        return {topic: found[topic] for topic in firsts}

    def _decode(self, records: DataFrame, subjects: Mapping[str, Subject], *, whole: bool) -> dict[str, list[Row]]:
        """Decode each record by its topic's subject; return the rows by topic.

        Subjects with the same versions are mostly one for all members.
        """
        alike: dict[tuple[bool, frozenset[int]], tuple[Subject, list[str]]] = {}
        for topic, subject in subjects.items():
            alike.setdefault((topic in self._commits, subject.ids), (subject, []))[1].append(topic)
        decoded, selected = [], []
        for number, ((is_commit, _), (subject, names)) in enumerate(alike.items()):
            name = f"r{number}"
            value = f.when(f.col("topic").isin(*names), f.col("value"))
            decoded.append(decoding.decode_record(value, subject).alias(name))
            columns = _select_commit(name, whole=whole) if is_commit else _select_frontier(name)
            selected.append(f.when(f.col(f"{name}.sequence").isNotNull(), f.struct("offset", *columns)).alias(name))
        rows = records.select("topic", "offset", *decoded).select("topic", "offset", *selected).toLocalIterator()
        found: dict[str, list[Row]] = defaultdict(list)
        for topic, offset, *made in rows:
            if (row := next((each for each in made if each is not None), None)) is None:
                raise Refused(
                    f"the record at offset {offset} of {topic} cannot be decoded",
                    at_stake="global cuts: what it says of other sources is not known",
                    repair=f"check the registry's subject {topic}-value, and find who else writes to the topic",
                )
            found[topic].append(row)
        return found


def _select_frontier(record: str) -> list[Column]:
    return [f.col(f"{record}.{name}") for name in ("sequence", "lsn", "seen", "in_doubt")]


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
        f.expr(f"filter({record}.prepared.global_id, each -> each IS NOT NULL)").alias("global_ids"),
    ]
