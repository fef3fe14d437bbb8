"""PostgreSQL, Kafka and a schema registry on this machine, without Docker: for trying, for the demo
and for the tests.

    with LocalStack() as stack:
        stack.postgres.dsn(), stack.kafka.bootstrap, stack.registry.url

Everything listens on loopback and on free ports, and keeps its data and logs in one folder. When
`start` returns, everything is ready: SQL was answered, a Kafka transaction committed, a schema
registered. Everything ends with this process, however that dies. Each server is a class with
`start`, `stop`, `kill` and `restart` on the same data and ports, for tests that break things.
"""

from twofold.stack.kafka import KafkaCluster
from twofold.stack.local import LocalStack, Ports, temporary_folder
from twofold.stack.postgres import PostgresServer
from twofold.stack.registry import RegistryServer

__all__ = ["KafkaCluster", "LocalStack", "Ports", "PostgresServer", "RegistryServer", "temporary_folder"]
