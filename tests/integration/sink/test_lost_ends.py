"""A broker without a leader for a partition forgets to end a transaction there (Kafka 4.3.0 to
4.4.0): recovery aborts what nobody committed, and refuses what was.

The table's partitions have one replica each, on three brokers. One of them is away while the
transaction ends.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from fixtures import stack as shared_stack
from integration.sink.sink_ground import PARTITIONS, Ground, commit, eventually, progress
from twofold.config import load
from twofold.doctor import kafka as doctor
from twofold.doctor.cluster import describe_cluster
from twofold.errors import Refused, UncertainEnd
from twofold.kafka.names import Names
from twofold.kafka.producer import TransactionalProducer
from twofold.kafka.publisher import TransactionRecords
from twofold.kafka.schema_registry import Registry, register_fixed
from twofold.kafka.watch import Watch
from twofold.stack import KafkaCluster, temporary_folder
from twofold.stack.server_files import OTHER_KAFKA
from twofold_common.positions import Lsn

AWAY = 2
"""The broker that goes away, and the number of the partition that it has."""
IS_USUAL = OTHER_KAFKA not in os.environ
"""Whether the other tests' broker has the version of the stack."""
pytestmark = pytest.mark.timeout(600)


class Forgetful(Ground):
    """On a cluster that forgets."""

    cluster: KafkaCluster

    def go_away(self) -> None:
        self.cluster.kill(AWAY)
        admin = AdminClient({"bootstrap.servers": self.cluster.nodes[0].advertised})

        def leaderless() -> bool:
            return admin.list_topics(self.table, 10).topics[self.table].partitions[AWAY].leader == -1

        eventually(leaderless)

    def come_back(self) -> None:
        self.cluster.start(AWAY)


@pytest.fixture(scope="module", params=["4.3.1", "4.4.0"])
def cluster(request: pytest.FixtureRequest, kafka: Any) -> Iterator[KafkaCluster]:
    """Brokers that forget. `kafka`, the other tests' broker of another version, is there before."""
    lock = Path(shared_stack.__file__).with_name(f"kafka-{request.param}.lock")
    with pytest.MonkeyPatch.context() as patch, ExitStack() as ending:
        patch.setenv(OTHER_KAFKA, str(lock))
        folder = temporary_folder()
        ending.callback(shutil.rmtree, folder, ignore_errors=True)
        made = KafkaCluster(folder, brokers=PARTITIONS)
        ending.callback(made.stop)
        made.start()
        yield made


@pytest.fixture
def ground(cluster: KafkaCluster, registry: Any, prefix: str) -> Iterator[Forgetful]:
    with ExitStack() as ending:
        client, watch, names = Registry(registry.url), Watch(), Names(prefix, "me")
        ending.callback(watch.close)
        made = Forgetful(cluster.bootstrap, names, client, register_fixed(client, names), watch, ending, {"call_timeout_s": 5})  # fmt: skip
        made.cluster = cluster
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        topics = [NewTopic(made.table, PARTITIONS, replica_assignment=[[n] for n in range(PARTITIONS)])]
        topics += [NewTopic(name, 1, replication_factor=3) for name in names.bookkeeping]
        for future in admin.create_topics(topics).values():
            future.result(20)
        yield made


@pytest.mark.slow
def test_doctor_knows_such_brokers(ground: Forgetful, kafka: Any, tmp_path: Path) -> None:
    def found(bootstrap: str) -> list[str]:
        file = tmp_path / "twofold.toml"
        file.write_text(
            f'name = "x"\n[source]\ndsn = "dbname=x"\n[registry]\nurl = "http://127.0.0.1:1"\n[kafka]\nbootstrap = "{bootstrap}"\n'
        )
        return [each.check for each in doctor._lost_ends(describe_cluster(load(file)))]

    assert found(ground.bootstrap) == ["lost_ends"]
    assert found(kafka.bootstrap) == ([] if IS_USUAL else ["lost_ends"])


def fence_alone(ground: Forgetful, transactional_id: str) -> None:
    """As a recovery that gets no further."""
    producer = TransactionalProducer(transactional_id, ground.settings, ground.watch)
    producer.init()
    producer.destroy()


@pytest.mark.slow
def test_what_was_aborted_stays_so_when_its_id_commits_again(ground: Forgetful) -> None:
    publisher = ground.take_over().publisher
    ground.open(publisher, 0, ground.rows("old a", "old b", "old c"))
    ground.go_away()
    fence_alone(ground, ground.names.prepared_id(0))
    ground.come_back()
    publisher.close()
    publisher = ground.take_over(confirmed=Lsn(0)).publisher
    publisher.open(0, [ground.rows("a", "b", "c")])
    publisher.commit_prepared(0, TransactionRecords(commit(1, "prepared"), progress(1)))
    eventually(lambda: len(ground.committed()) >= 3)
    ground.settle()
    assert ground.committed() == ["a", "b", "c"]


@pytest.mark.slow
def test_what_was_committed_is_not_aborted(ground: Forgetful) -> None:
    publisher = ground.take_over().publisher
    publisher.produce(ground.rows("a", "b", "c"))
    publisher._main.flush()
    ground.go_away()
    with suppress(UncertainEnd):
        publisher.commit_main(TransactionRecords(commit(1), progress(1)))
    ground.come_back()
    publisher.close()
    with pytest.raises(Refused) as refused:
        ground.take_over(confirmed=Lsn(0))
    hung = f"{ground.table} [{AWAY}] from offset 0 on"
    assert f"has never ended a transaction of this connector in {hung}" in str(refused.value)
    assert "commit record 1 declares offsets 0 to 0" in str(refused.value)
    assert f"--topic {ground.table} --partition {AWAY} --start-offset 0" in str(refused.value)
    assert ground.committed() == ["a", "b"]
    assert ground.uncommitted() == ["a", "b", "c"]
