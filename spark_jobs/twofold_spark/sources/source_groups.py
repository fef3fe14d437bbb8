"""Finds the members of a source group, by the frontiers that its connectors have written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pyspark.sql import SparkSession

from twofold_avro.names import TopicNames
from twofold_spark.errors import SetupError
from twofold_spark.sources import decoding, kafka_reader
from twofold_spark.sources.kafka_client import Kafka, list_topics
from twofold_spark.sources.registry import Registry

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
    """Return what the last record of a topic says; None if it has none, or has other records."""
    subject = registry.find_subject(f"{topic}-value")
    if subject is None or subject.latest.get("name") != _RECORD:
        return None
    records = kafka_reader.read_from(spark, kafka, topic, kafka_reader.EARLIEST).where("value IS NOT NULL")
    decoded = records.select(decoding.decode_record(records["value"], subject).alias("r"), "offset")
    row = decoded.orderBy(decoded["offset"].desc()).select("r.group", "r.seen.prefix").first()
    if row is None or row["group"] is None:
        return None
    return Membership(row["group"], frozenset(row["prefix"]) | {topic.removesuffix(_FRONTIERS)})
