"""Asks Kafka for metadata until an answer is reliable.

Metadata is one broker's view, and that broker may be behind. A broker that was frozen or cut off
answers from its earlier state. A broker that its controller has fenced omits itself: a cluster of
one then has no broker. Both states end by themselves within moments; until then "there is none"
means nothing.
"""

from __future__ import annotations

import re
import socket
import ssl
import time
from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata, NewTopic  # type: ignore[attr-defined]

from twofold.errors import SetupError, Unreachable
from twofold.kafka.client import (
    TOPIC_ALREADY_EXISTS,
    TOPIC_EXCEPTION,
    KafkaSettings,
    error_code,
    sort_error,
    sorted_errors,
)

PAUSE_S = 0.05
ANSWER_S = 10.0
"""The time for an answer, unless a caller has less: TLS and SASL may come before it."""
_NOT_LET_IN = {KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._SSL}  # noqa: SLF001
_ALL_DOWN = KafkaError._ALL_BROKERS_DOWN  # noqa: SLF001
_SURROUNDINGS = re.compile(r"^\S+(/bootstrap|/\d+): | \(after \d+ms in state \w+.*?\)")
"""The words that librdkafka puts around a cause."""
_CERTIFICATES = {
    10: "has expired; remedy: renew it, or set this machine's clock",
    62: "is for another host; remedy: name the broker in kafka.bootstrap, and in its advertised.listeners, as its certificate does",
    64: "is for another address; remedy: name the broker in kafka.bootstrap, and in its advertised.listeners, as its certificate does",
    **dict.fromkeys(
        (7, 18, 19, 20, 21),
        "is signed by an authority that is not trusted here; remedy: set ssl.ca.location in kafka.options to the file of the brokers' authority",
    ),
}
"""The meanings of OpenSSL's codes about a broker's certificate."""
_ABSENT = {TOPIC_EXCEPTION, KafkaError.INVALID_REPLICATION_FACTOR, KafkaError.POLICY_VIOLATION}
"""Errors that show the topic's absence: the controller checks for an existing topic first."""


def cluster_metadata(admin: AdminClient, timeout_s: float) -> ClusterMetadata:
    """Return the metadata, with at least one broker. Raises KafkaException if nobody answers."""
    deadline = time.monotonic() + timeout_s
    while not (metadata := _ask(admin, max(0.1, deadline - time.monotonic()))).brokers:
        if time.monotonic() > deadline:
            raise Unreachable(
                f"Kafka answers, but has named no working broker for {timeout_s:.0f} s: its controller has fenced all brokers; see their logs"
            )
        time.sleep(PAUSE_S)
    return metadata


def _ask(admin: AdminClient, timeout_s: float) -> ClusterMetadata:
    admin.poll(0)
    try:
        return admin.list_topics(timeout=timeout_s)
    except KafkaException:
        # Only a poll logs what librdkafka said, and asks for another password after a denial.
        admin.poll(0)
        raise


def ask_brokers(settings: KafkaSettings, within_s: float = ANSWER_S) -> tuple[AdminClient, ClusterMetadata]:
    """Return a client that logs nothing, and the metadata.

    Raise an error that says why no broker answers.
    """
    reported: list[KafkaError] = []
    bootstrap = settings.client["bootstrap.servers"]
    client: dict[str, Any] = {**settings.admin(), "log_level": 0, "error_cb": reported.append}
    with sorted_errors(f"asking {bootstrap}"):
        admin = settings.secrets.open(AdminClient, client)
        try:
            return admin, cluster_metadata(admin, min(within_s, settings.call_timeout_s))
        except KafkaException:
            # The call itself says of all causes that nobody answers.
            admin.poll(0.5)
            for error in reported:
                if error.code() == KafkaError._SSL and (wrong := _wrong_certificate(settings.client)):  # noqa: SLF001
                    raise SetupError(wrong) from None
                if error.code() in _NOT_LET_IN:
                    raise KafkaException(error) from None
            causes = [_SURROUNDINGS.sub("", each.str()) for each in reported if each.code() != _ALL_DOWN]
            cause = f": {causes[0]}" if causes else ""
            raise Unreachable(
                f"Kafka at {bootstrap} does not answer{cause}; remedy: start Kafka, or correct kafka.bootstrap, and security.protocol in kafka.options"
            ) from None


def _wrong_certificate(client: Mapping[str, Any]) -> str | None:
    """Return what is wrong with the first broker's certificate.

    librdkafka has one message for all such causes, so the handshake is tried with Python's TLS.
    """
    address = str(client["bootstrap.servers"]).split(",")[0].strip().rpartition("://")[2]
    host, _, port = address.rpartition(":")
    try:
        context = ssl.create_default_context(cafile=client.get("ssl.ca.location"), cadata=client.get("ssl.ca.pem"))
        context.check_hostname = client.get("ssl.endpoint.identification.algorithm") != "none"
        with socket.create_connection((host.strip("[]"), int(port or 9092)), ANSWER_S) as plain:
            context.wrap_socket(plain, server_hostname=host.strip("[]")).close()
    except ssl.SSLCertVerificationError as error:
        problem = _CERTIFICATES.get(error.verify_code)
        return problem and f"Kafka at {address}: the broker's certificate {problem}"
    except (OSError, ValueError):
        pass  # the caller has librdkafka's own words
    return None


def existing_topics(admin: AdminClient, names: Iterable[str], timeout_s: float) -> set[str]:
    """Return the topics that exist according to the controller, whatever the metadata shows.

    The call creates nothing, but needs the right to create.
    """
    asked = [NewTopic(name, 1) for name in names]
    if not asked:
        return set()
    exist = set()
    for name, future in admin.create_topics(asked, request_timeout=timeout_s, validate_only=True).items():
        error = future.exception()
        code = error_code(error)
        if code == TOPIC_ALREADY_EXISTS:
            exist.add(name)
        elif error is not None and code not in _ABSENT:
            raise sort_error(error, f"asking whether the topic {name} exists") from error
    return exist
