"""Print the committed changes of a topic.

pip install "confluent-kafka[avro]"
python consumer.py 127.0.0.1:9092 http://127.0.0.1:8081 bank.public.accounts my-group
"""

import signal
import sys

from confluent_kafka import Consumer
from confluent_kafka.schema_registry import SchemaRegistryClient, topic_subject_name_strategy
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

bootstrap, registry, topic, group = sys.argv[1:]
consumer = Consumer(
    {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        # A group without offsets begins with the first record.
        "auto.offset.reset": "earliest",
        # Without it you see rows that are in doubt or rolled back.
        "isolation.level": "read_committed",
    }
)
decode = AvroDeserializer(
    SchemaRegistryClient({"url": registry}),
    # Apicurio does not answer the default strategy's question.
    conf={"subject.name.strategy": topic_subject_name_strategy},
)
consumer.subscribe([topic])
# SIGTERM ends it as Ctrl-C does: it leaves the group.
signal.signal(signal.SIGTERM, signal.default_int_handler)
try:
    while True:
        message = consumer.poll(1)
        if message is None or message.value() is None:  # nothing new, or the tombstone behind a delete
            continue
        if message.error():
            raise SystemExit(message.error())
        change = decode(message.value(), SerializationContext(topic, MessageField.VALUE))
        # c insert, u update, d delete, r loaded row, t truncate (no row)
        print(change["op"], change["after"] or change["before"], flush=True)
except KeyboardInterrupt:
    consumer.close()
