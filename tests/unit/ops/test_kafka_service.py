"""The table of managed Kafkas: which is recognised by what. Names are as the vendors' pages show
them; no broker.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from twofold.config import load
from twofold.ops.doctor import kafka
from twofold.ops.doctor.cluster import Cluster
from twofold.ops.doctor.kafka_service import APACHE_KAFKA, SERVICES, recognise
from twofold.runner.sink_settings import names_of

MSK = "b-1.mytestcluster.123z8u.c2.kafka.us-west-1.amazonaws.com:9098"
SERVERLESS = "boot-abcde1.c2.kafka-serverless.us-east-1.amazonaws.com:9098"
CONFLUENT = "pkc-abc12.us-east-1.aws.confluent.cloud:9092"
UUID = "69087c28-e59b-4b25-bee2-bd199e6a9ab2"


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
