"""Checks Kafka: whether brokers and topics are as the connector needs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from twofold.config import Config
from twofold.doctor.cluster import Cluster, describe_cluster
from twofold.doctor.finding import SHOWN_MAX, Finder, Finding, start_over
from twofold.doctor.kafka_service import iam_actions
from twofold.doctor.source_group import examine_group
from twofold.kafka.kafka_settings import kafka_settings
from twofold.kafka.record_sizes import RECORD_BYTES

RIGHTS = ("CREATE", "DESCRIBE", "DESCRIBE_CONFIGS", "READ", "WRITE")
"""Rights on the prefix's topics.

Create is asked for each topic: a right on a prefix covers present and future ones.
"""
TOLD = ("cleanup.policy", "max.message.bytes", "min.insync.replicas", "retention.bytes", "retention.ms")
"""Settings of topics that a run reads."""
_finding = Finder("kafka")


def examine(config: Config) -> Iterator[Finding]:
    """Run all checks on one description of the cluster."""
    cluster = describe_cluster(config)
    for check in _CHECKS:
        yield from check(cluster)
    yield from examine_group(config, _grant(cluster))


def _alter(cluster: Cluster, topic: str, setting: str) -> str:
    return f"kafka-configs --bootstrap-server {cluster.config.kafka.bootstrap} --alter --entity-type topics --entity-name {topic} --add-config {setting}"


def _grant(cluster: Cluster) -> str:
    return f"kafka-acls --bootstrap-server {cluster.config.kafka.bootstrap} --add --allow-principal User:{cluster.principal}"


def _service(cluster: Cluster) -> Iterator[Finding]:
    service = cluster.service
    if service.page:
        yield _finding.note(
            "service",
            f"the cluster is {service.name}, by its brokers' names or its id",
            "rights and settings are changed in the service's way; nobody has tried Twofold with it",
            f"-- see {service.page}",
        )


def _has_iam(cluster: Cluster) -> bool:
    """Whether rights come from an IAM policy, and Kafka's ACLs mean nothing."""
    kafka = cluster.config.kafka
    return "MSK" in cluster.service.name and kafka.options.get("sasl.mechanism") == "OAUTHBEARER"


def _acls(cluster: Cluster) -> Iterator[Finding]:
    grant = _grant(cluster)
    missing = sorted({each for operations in cluster.may.values() for each in RIGHTS if each not in operations})
    if missing:
        words = " ".join(f"--operation {each.title().replace('_', '')}" for each in missing)
        yield _finding.must(
            "acl",
            f"{cluster.principal} may not {', '.join(missing)} topics of the prefix",
            "the connector ends where it needs it first",
            f"-- allow {iam_actions(missing)} on topic/<cluster>/*/{cluster.config.prefix}.* in the IAM policy ({cluster.service.page})"
            if _has_iam(cluster)
            else f"{grant} {words} --topic {cluster.config.prefix}. --resource-pattern-type prefixed",
        )
    if not cluster.broker_config:
        yield _finding.must(
            "acl",
            f"{cluster.principal} may not see the brokers' settings",
            "whether the brokers' limits fit the configuration cannot be checked, and twofold run checks it",
            f"-- allow kafka-cluster:DescribeClusterDynamicConfiguration on the cluster in the IAM policy ({cluster.service.page})"
            if _has_iam(cluster)
            else f"{grant} --operation DescribeConfigs --cluster",
        )


def _unreported(cluster: Cluster) -> Iterator[Finding]:
    """Check that Kafka tells what a run must know: some services leave settings out."""
    missing = {each: "its topics" for topic in cluster.topics.values() for each in TOLD if each not in topic.config}
    if cluster.broker_config and "transaction.max.timeout.ms" not in cluster.broker_config:
        missing["transaction.max.timeout.ms"] = "its brokers"
    for setting, owner in sorted(missing.items()):
        yield _finding.must(
            "unreported",
            f"Kafka does not report {setting} of {owner}",
            "twofold run must know it before it writes, and refuses",
            f"-- ask the operator of {cluster.service.name if cluster.service.page else 'the brokers'} to expose the setting",
        )


def _transaction_timeout(cluster: Cluster) -> Iterator[Finding]:
    if "transaction.max.timeout.ms" not in cluster.broker_config:
        return
    bound_s = int(cluster.broker_config["transaction.max.timeout.ms"]) / 1000
    wanted_s, hold_s = cluster.config.kafka.transaction_timeout, cluster.config.prepared.hold
    if wanted_s > bound_s:
        remedy = [f"kafka.transaction_timeout = {bound_s:g}"]
        if hold_s >= bound_s:
            remedy.append(f"prepared.hold = {bound_s / 2:g}")
        yield _finding.must(
            "transaction_timeout",
            f"kafka.transaction_timeout is {wanted_s:g} s, and the brokers allow {bound_s:g} s (transaction.max.timeout.ms)",
            "the brokers refuse the producers",
            *remedy,
        )


def _idle_connections(cluster: Cluster) -> Iterator[Finding]:
    """Check that brokers keep idle connections long enough.

    The end of an open transaction needs the connection to its coordinator, and librdkafka takes up
    to two seconds to find it again.
    """
    idle_s = int(cluster.broker_config.get("connections.max.idle.ms", -1)) / 1000
    hold_s = cluster.config.prepared.hold
    if 0 <= idle_s <= hold_s:
        yield _finding.should(
            "idle_connections",
            f"the brokers close connections after {idle_s:g} s without a request (connections.max.idle.ms), and prepared.hold is {hold_s:g} s",
            "a prepared transaction that ends when its connection was just closed costs a recovery (UncertainEnd)",
            f"prepared.hold = {idle_s / 2:g}",
        )


def _lost_ends(cluster: Cluster) -> Iterator[Finding]:
    """Recognise Kafka 4.3 by a setting that came with it."""
    if "cordoned.log.dirs" in cluster.broker_config:
        yield _finding.should(
            "lost_ends",
            "the brokers are Kafka 4.3 or later; 4.3.0 to 4.4.0 forget to end a transaction in a partition that has no leader (KAFKA-20734)",
            "after the start of a whole cluster, or with one broker, the connector may refuse until a person has aborted what was forgotten",
            "-- run Kafka 4.2, or a release whose notes name KAFKA-20734; see docs/inside/kafka.md",
        )


def _replication(cluster: Cluster) -> Iterator[Finding]:
    wanted = cluster.config.kafka.replication
    if wanted > cluster.brokers and cluster.names.progress not in cluster.topics:
        yield _finding.must(
            "replication",
            f"kafka.replication is {wanted}, and there are {cluster.brokers} brokers",
            "twofold init cannot make its topics",
            f"kafka.replication = {cluster.brokers}",
            f"kafka.min_insync_replicas = {min(cluster.config.kafka.min_insync_replicas, max(1, cluster.brokers - 1))}",
            "-- or start the brokers that are away",
        )


def _transaction_log(cluster: Cluster) -> Iterator[Finding]:
    if (
        cluster.broker_config
        and cluster.brokers > 1
        and int(cluster.broker_config.get("transaction.state.log.replication.factor") or 3) < 3
    ):
        yield _finding.should(
            "transaction_log",
            "transaction.state.log.replication.factor is below 3",
            "the loss of one broker can lose the state of transactions, and with it what exactly once rests on",
            f"-- {cluster.service.broker_settings.format(setting='transaction.state.log.replication.factor', value=3)} ({cluster.service.page})"
            if cluster.service.page
            else "transaction.state.log.replication.factor=3  # in every broker's server.properties, before its first start; later by kafka-reassign-partitions of __transaction_state",
        )


def _missing(cluster: Cluster) -> Iterator[Finding]:
    wanted = sorted(cluster.names.own - {cluster.names.frontiers})
    missing = [name for name in wanted if name not in cluster.may and name not in cluster.hidden]
    if cluster.hidden:
        yield _finding.must(
            "topic_hidden",
            f"Kafka has {', '.join(sorted(cluster.hidden))} and does not show it",
            "a broker is behind its controller, which passes, or we may not describe it; twofold run waits for it",
            f"{_grant(cluster)} --operation Describe --topic {cluster.config.prefix}. --resource-pattern-type prefixed",
        )
    if len(missing) == len(wanted):
        yield _finding.note(
            "topics",
            f"there are no topics {cluster.config.prefix}.* yet",
            "nothing is published before there are",
            "twofold init",
        )
    else:
        for name in missing:
            yield _finding.must(
                "topic_gone",
                f"the topic {name} is gone",
                "what Twofold knew of its progress, its commits or what is in doubt was in it; twofold run refuses",
                "-- restore the topic with what it held (docs/reference/refusals.md), else start over:",
                *start_over(cluster.config.prefix),
            )


def _cleanup(cluster: Cluster) -> Iterator[Finding]:
    compacted = {cluster.names.progress, cluster.names.prepared, cluster.names.frontiers}
    for topic in cluster.topics.values():
        should = "compact" if topic.name in compacted else "delete"
        if topic.config.get("cleanup.policy", should) != should:
            yield _finding.must(
                "cleanup_policy",
                f"the topic {topic.name} has cleanup.policy={topic.config['cleanup.policy']}, and must have {should}",
                "retention takes away what recovery must read"
                if should == "compact"
                else "compaction takes rows away that consumers have yet to read",
                _alter(cluster, topic.name, f"cleanup.policy={should}"),
            )


def _partitions(cluster: Cluster) -> Iterator[Finding]:
    for name in sorted(cluster.names.bookkeeping & cluster.topics.keys()):
        if (found := cluster.topics[name].partitions) != 1:
            yield _finding.must(
                "partitions",
                f"the topic {name} has {found} partitions, and must have 1",
                "its records would have no order; twofold run refuses",
                f"kafka-topics --bootstrap-server {cluster.config.kafka.bootstrap} --delete --topic {name}",
                "-- only where nothing was written to it; else start over:",
                *start_over(cluster.config.prefix),
            )


def _record_sizes(cluster: Cluster) -> Iterator[Finding]:
    for name in sorted(cluster.names.bookkeeping & cluster.topics.keys()):
        told = cluster.topics[name].config.get("max.message.bytes", RECORD_BYTES)
        if int(told) < RECORD_BYTES:
            yield _finding.must(
                "record_size",
                f"the topic {name} has max.message.bytes={told}, and must have {RECORD_BYTES}",
                "a record about a transaction over many tables, or about many in doubt, would not fit; twofold run refuses",
                _alter(cluster, name, f"max.message.bytes={RECORD_BYTES}"),
            )
    wanted = kafka_settings(cluster.config).record_bytes
    allowed = int(cluster.broker_config.get("socket.request.max.bytes", wanted))
    if wanted > allowed:
        yield _finding.must(
            "request_size",
            f"message.max.bytes in kafka.options is {wanted}, and the brokers close a connection that sends more than {allowed} (socket.request.max.bytes)",
            "a row of that size ends every run with a timeout",
            f"socket.request.max.bytes={wanted + (1 << 20)}  # in server.properties of every broker, then restart it",
        )


def _durable(cluster: Cluster) -> Iterator[Finding]:
    least = cluster.config.kafka.min_insync_replicas
    for topic in list(cluster.topics.values())[:SHOWN_MAX]:
        told = topic.config.get("min.insync.replicas")
        in_sync_min = least if told is None else int(told)
        if topic.leaderless:
            yield _finding.must(
                "no_leader",
                f"{topic.leaderless} partitions of {topic.name} have no leader",
                "nothing can be written to them or read from them",
                "-- start the brokers that hold them",
            )
        elif told is not None and topic.in_sync < in_sync_min:
            yield _finding.must(
                "in_sync",
                f"the topic {topic.name} has {topic.in_sync} replicas in sync, and needs {in_sync_min} (min.insync.replicas)",
                "no transaction can commit",
                "-- start the brokers that are away"
                if in_sync_min <= topic.replicas
                else _alter(cluster, topic.name, f"min.insync.replicas={max(1, topic.replicas - 1)}"),
            )
        elif in_sync_min < least:
            alter = _alter(cluster, topic.name, f"min.insync.replicas={least}")
            yield _finding.must(
                "min_insync_replicas",
                f"the topic {topic.name} has min.insync.replicas={in_sync_min}, the configuration asks for {least}",
                "fewer brokers than you think have a row when it is acknowledged; twofold run refuses",
                alter if topic.replicas > least else f"kafka.min_insync_replicas = {in_sync_min}",
            )
        if topic.replicas < cluster.config.kafka.replication:
            yield _finding.must(
                "replicas",
                f"the topic {topic.name} has {topic.replicas} replicas, the configuration asks for {cluster.config.kafka.replication}",
                "fewer brokers than you think hold its rows; twofold run refuses",
                f"kafka.replication = {topic.replicas}",
                "-- or reassign its partitions: kafka-reassign-partitions",
            )
        if topic.config.get("unclean.leader.election.enable") == "true":
            yield _finding.should(
                "unclean_election",
                f"the topic {topic.name} allows unclean leader elections",
                "a broker without the newest rows may become the leader: what was acknowledged is lost",
                _alter(cluster, topic.name, "unclean.leader.election.enable=false"),
            )


def _retention(cluster: Cluster) -> Iterator[Finding]:
    commits = cluster.topics.get(cluster.names.commits)
    if commits is None or any(not {*TOLD} <= topic.config.keys() for topic in (commits, *cluster.tables)):
        return
    kept = _kept(commits.config["retention.ms"])
    longest = max((_kept(topic.config["retention.ms"]) for topic in cluster.tables), default=0.0)
    if kept < longest:
        yield _finding.must(
            "retention",
            f"the topic {commits.name} keeps its records for less time than a table's topic",
            "a mirror that lags would never learn where rows lie that are still there; twofold run refuses",
            _alter(cluster, commits.name, "retention.ms=-1"),
        )
    if commits.config["retention.bytes"] != "-1":
        yield _finding.must(
            "retention_bytes",
            f"the topic {commits.name} keeps only {commits.config['retention.bytes']} bytes",
            "a mirror that lags would never learn where rows lie that are still there; twofold run refuses",
            _alter(cluster, commits.name, "retention.bytes=-1"),
        )


def _kept(retention_ms: str) -> float:
    return float("inf") if int(retention_ms) < 0 else float(retention_ms)


_CHECKS: tuple[Callable[[Cluster], Iterator[Finding]], ...] = (
    _service,
    _acls,
    _missing,
    _unreported,
    _transaction_timeout,
    _idle_connections,
    _lost_ends,
    _replication,
    _cleanup,
    _partitions,
    _record_sizes,
    _durable,
    _retention,
    _transaction_log,
)
