"""Kafka's metadata is one broker's view, and that broker may be behind: here it is asked until an answer can be relied on.

A broker that was frozen or cut off answers with what it knew before. Fenced by its controller, it leaves itself out: a cluster of one then has no broker. Both end by themselves within moments,
and until then "there is none" means nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient, ClusterMetadata, NewTopic  # type: ignore[attr-defined]

from twofold.errors import Unreachable
from twofold.sink.client import (
    TOPIC_ALREADY_EXISTS,
    TOPIC_EXCEPTION,
    KafkaSettings,
    kafka_error_of,
    sort_error,
    sorted_errors,
)

PAUSE_S = 0.05
_ABSENT = {TOPIC_EXCEPTION, KafkaError.INVALID_REPLICATION_FACTOR, KafkaError.POLICY_VIOLATION}
"""Why the controller would not create a topic that does not exist: it looks for an existing one before."""


def cluster_metadata(admin: AdminClient, timeout_s: float) -> ClusterMetadata:
    """The topics, and at least one broker. Raises KafkaException if nobody answers."""
    deadline = time.monotonic() + timeout_s
    while not (metadata := admin.list_topics(timeout=max(0.1, deadline - time.monotonic()))).brokers:
        if time.monotonic() > deadline:
            raise Unreachable(
                f"Kafka answers, and for {timeout_s:.0f} s has named no broker that works: its controller has fenced all of them; look into the brokers' logs"
            )
        time.sleep(PAUSE_S)
    return metadata


def require_brokers(settings: KafkaSettings, within_s: float) -> None:
    """Raise what says why no broker answers."""
    with sorted_errors(f"asking {settings.client['bootstrap.servers']}"):
        cluster_metadata(AdminClient(settings.admin()), within_s)


def existing_topics(admin: AdminClient, names: Iterable[str], timeout_s: float) -> set[str]:
    """Those of the topics that exist, as the controller knows, whatever the metadata shows. Creates nothing, and needs the right to."""
    asked = [NewTopic(name, 1) for name in names]
    if not asked:
        return set()
    exist = set()
    for name, future in admin.create_topics(asked, request_timeout=timeout_s, validate_only=True).items():
        error = future.exception()
        if error is None:
            continue
        found = kafka_error_of(error)
        if found is not None and found.code() == TOPIC_ALREADY_EXISTS:
            exist.add(name)
        elif found is None or found.code() not in _ABSENT:
            raise sort_error(error, f"asking whether the topic {name} exists") from error
    return exist
