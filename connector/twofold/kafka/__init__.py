"""Speaks to Kafka and the schema registry: producers, ends of transactions, topics, bookkeeping.

Decides nothing about transactions; `bridge` does. Imports confluent_kafka, as no other folder on
the way of a row does. Begin with `publisher`; recovery's part begins with `fencing`.
"""
