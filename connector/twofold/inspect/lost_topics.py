"""Finds the topics that a person or a program has deleted although their tables are published, as
the next run's recovery does.
"""

from __future__ import annotations

from twofold.config import Config
from twofold.errors import Refused
from twofold.kafka.kafka_settings import kafka_settings, topic_policy
from twofold.kafka.progress import RecoveredState
from twofold.kafka.topic_rules import RequiredTopic
from twofold.kafka.topics import Topics
from twofold.source.published_tables import published_tables
from twofold_avro.names import topic_of


def find_lost_topics(config: Config, recovered: RecoveredState) -> list[tuple[str, Refused]]:
    """Return the pinned topics that are gone or were made again, each with its refusal.

    A reload that a person has asked for repairs its topic, and a table whose rows were passed over
    restarts by itself. A table that is not published needs no topic: PostgreSQL is asked for these
    only if a topic is lost, because a lock on its catalog may keep the answer.
    """
    pins = {topic: pin for topic, pin in recovered.pins.items() if topic not in recovered.to_reload}
    wanted = [RequiredTopic.of_pin(topic, pin) for topic, pin in pins.items() if not pin.is_passed_over]
    lost = Topics(kafka_settings(config), topic_policy(config)).lost(wanted) if wanted else []
    if not lost:
        return []
    try:
        published = published_tables(config.conninfo, config.publication)
    except Refused:  # there is no publication, which doctor and the next run tell by themselves
        return []
    tables = {(each.schema, each.table) for each in published} - {rule.name for rule in config.outbox}
    in_use = {topic_of(config.prefix, *table) for table in tables}
    return [each for each in lost if each[0] in in_use]
