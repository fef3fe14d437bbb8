"""PostgreSQL, Kafka and a schema registry on this machine, without Docker: for trying, for the demo and for the tests.

    with LocalStack() as stack:
        stack.postgres.dsn(), stack.kafka.bootstrap, stack.registry.url

Everything listens on loopback and on free ports, keeps its data and logs in one folder, is ready when `start` returns (SQL was answered, a Kafka
transaction committed, a schema registered) and ends with this process, by whatever death. Each server is a class of its own with `start`, `stop`, `kill`
and `restart` on the same data and ports, for tests that break things.
"""

from twofold.stack.java import spark_java_home
from twofold.stack.kafka import KafkaCluster
from twofold.stack.local import LocalStack, Ports, temporary_folder
from twofold.stack.postgres import PostgresServer
from twofold.stack.registry import RegistryServer

__all__ = [
    "KafkaCluster",
    "LocalStack",
    "Ports",
    "PostgresServer",
    "RegistryServer",
    "spark_java_home",
    "temporary_folder",
]
