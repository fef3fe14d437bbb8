"""The table of managed Kafkas: which is recognised by what. Names are as the vendors' pages show
them; no broker.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from twofold.config import load
from twofold.doctor import kafka
from twofold.doctor.cluster import Cluster, Topic
from twofold.doctor.kafka_service import APACHE_KAFKA, SERVICES, recognise
from twofold.kafka.kafka_settings import names_of

MSK = "b-1.mytestcluster.123z8u.c2.kafka.us-west-1.amazonaws.com:9098"
SERVERLESS = "boot-abcde1.c2.kafka-serverless.us-east-1.amazonaws.com:9098"
CONFLUENT = "pkc-abc12.us-east-1.aws.confluent.cloud:9092"
UUID = "69087c28-e59b-4b25-bee2-bd199e6a9ab2"
COMPACTED = ("bank.progress", "bank.prepared")


@pytest.mark.parametrize(
    ("cluster_id", "addresses", "name"),
    [
        ("x", [MSK], "Amazon MSK"),
        (None, [SERVERLESS], "Amazon MSK Serverless"),
        ("x", [f" {CONFLUENT}"], "Confluent Cloud"),
        (f"redpanda.{UUID}", ["10.0.0.1:9092"], "Redpanda"),
        ("x", ["kafka-1.example.org:9092", "redpanda.example.org:9092"], "Apache Kafka"),
        ("x", ["kafka.ec2-1.us-east-1.compute.amazonaws.com:9092"], "Apache Kafka"),
        (None, [], "Apache Kafka"),
    ],
)
def test_a_service_is_recognised(cluster_id: str | None, addresses: list[str], name: str) -> None:
    assert recognise(cluster_id, addresses).name == name


@pytest.mark.parametrize("service", SERVICES, ids=lambda each: each.name)
def test_the_page_that_a_remedy_names_speaks_of_it(service: Any) -> None:
    page = (Path(__file__).parents[3] / service.page).read_text()
    assert service.name.removeprefix("Amazon ") in page
    assert "was not tried" in page


def cluster(folder: Path, address: str, **kept: Any) -> Cluster:
    file = folder / "bank.toml"
    file.write_text(
        f'name = "bank"\n[source]\ndsn = "dbname=bank"\n[registry]\nurl = "http://127.0.0.1:1"\n[kafka]\nbootstrap = "{address}"\n'
        'options = {"security.protocol" = "SASL_SSL", "sasl.mechanism" = "OAUTHBEARER", "sasl.oauthbearer.method" = "oidc"}\n'
    )
    config = load(file)
    given: dict[str, Any] = {"broker_config": {}, "may": {"bank.commits": frozenset({"READ"})}, **kept}
    return Cluster(config, names_of(config), 3, topics={}, principal="p", service=recognise("x", [address]), **given)


def remedies(found: Cluster) -> str:
    return "\n".join(line for check in (kafka._service, kafka._acls) for each in check(found) for line in each.remedy)


def test_an_imitated_msk_with_iam_gets_actions_and_no_acls(tmp_path: Path) -> None:
    said = remedies(cluster(tmp_path, MSK))
    assert "kafka-cluster:CreateTopic, kafka-cluster:DescribeTopic" in said
    assert "kafka-cluster:DescribeClusterDynamicConfiguration" in said
    assert "-- see docs/services/kafka.md" in said
    assert "kafka-acls" not in said


def test_apache_kafka_gets_acls_and_no_note(tmp_path: Path) -> None:
    found = cluster(tmp_path, "kafka-1:9092")
    assert found.service is APACHE_KAFKA
    said = remedies(found)
    assert "kafka-acls" in said
    assert "docs/services" not in said


def test_an_imitated_service_names_its_own_way_to_a_brokers_setting(tmp_path: Path) -> None:
    found = cluster(tmp_path, MSK, broker_config={"transaction.state.log.replication.factor": "1"})
    (finding,) = kafka._transaction_log(found)
    assert finding.remedy[0].startswith(
        "-- set transaction.state.log.replication.factor = 3 in a custom MSK configuration"
    )
    (own,) = kafka._transaction_log(dataclasses.replace(found, service=APACHE_KAFKA))
    assert "server.properties" in own.remedy[0]


TOPIC_SETTINGS = {
    "cleanup.policy": "delete",
    "max.message.bytes": "8388608",
    "min.insync.replicas": "2",
    "retention.ms": "-1",
    "retention.bytes": "-1",
}
BROKER_SETTINGS = {"transaction.max.timeout.ms": "900000", "transaction.state.log.replication.factor": "3"}
FEW_LOGS = {**BROKER_SETTINGS, "transaction.state.log.replication.factor": "2"}


@dataclass(frozen=True)
class Imitation:
    """What a service answers, and a part of the remedy of each finding."""

    remedies: dict[str, str]
    address: str = "kafka.example.org:9092"
    cluster_id: str = "x"
    broker: dict[str, str] = field(default_factory=lambda: BROKER_SETTINGS)
    left_out: str = ""
    """A topic's setting that it does not tell."""
    replicas: int = 3

    def topic(self, name: str) -> Topic:
        settings = {key: value for key, value in TOPIC_SETTINGS.items() if key != self.left_out}
        if name in COMPACTED:
            settings["cleanup.policy"] = "compact"
        return Topic(name, 1, self.replicas, self.replicas, 0, settings)


PAGE = {"service": "-- see docs/services/kafka.md"}
IMITATIONS = {
    "MSK": Imitation(PAGE | {"transaction_log": "in a custom MSK configuration"}, MSK, broker=FEW_LOGS),
    "MSK Serverless": Imitation(
        PAGE
        | {
            "acl": "kafka-cluster:DescribeClusterDynamicConfiguration",
            "unreported": "ask the operator of Amazon MSK Serverless",
        },
        SERVERLESS,
        broker={},
        left_out="min.insync.replicas",
    ),
    "Confluent Cloud": Imitation(
        PAGE | {"unreported": "ask the operator of Confluent Cloud"},
        CONFLUENT,
        broker={"transaction.state.log.replication.factor": "3"},
    ),
    "Redpanda": Imitation(
        PAGE | {"transaction_log": "cluster properties in place of transaction.state.log.replication.factor"},
        cluster_id=f"redpanda.{UUID}",
        broker=FEW_LOGS,
    ),
    "WarpStream": Imitation(
        {"replicas": "kafka.replication = 1", "unreported": "ask the operator of the brokers"},
        left_out="min.insync.replicas",
        replicas=1,
    ),
    "AutoMQ": Imitation({"in_sync": "min.insync.replicas=1", "replicas": "kafka.replication = 1"}, replicas=1),
    "Apache Kafka": Imitation({}),
}


@pytest.mark.parametrize("name", IMITATIONS)
def test_an_imitated_service_is_told_what_it_lacks_in_its_own_way(tmp_path: Path, name: str) -> None:
    """Its answers are as its documentation lets one expect them; nobody has seen them."""
    imitated = IMITATIONS[name]
    names = (*COMPACTED, "bank.commits", "bank.messages", "bank.public.account")
    found = dataclasses.replace(
        cluster(tmp_path, imitated.address),
        topics={each: imitated.topic(each) for each in names},
        may=dict.fromkeys(names, frozenset(kafka.RIGHTS)),
        broker_config=imitated.broker,
        service=recognise(imitated.cluster_id, [imitated.address]),
    )
    remedies: dict[str, str] = {}
    for each in (each for check in kafka._CHECKS for each in check(found)):
        remedies[each.check] = remedies.get(each.check, "") + "\n".join(each.remedy)
    assert remedies.keys() == imitated.remedies.keys()
    assert not [check for check, words in imitated.remedies.items() if words not in remedies[check]]
