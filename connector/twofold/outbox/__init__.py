"""The outbox: inserts of an outbox table become events in topics of their own.

Decides which topic, key and payload an event has. Asks the registry and Kafka through
`kafka.registrar` alone. Begin with `outbox`.
"""
