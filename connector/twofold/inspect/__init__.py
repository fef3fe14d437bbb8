"""What the servers know of a connector, whether it runs or not: status and audit.

Decides whether progress, commit records, slot and server agree. Reads PostgreSQL and Kafka, and
changes nothing. Begin with `status_report`; recovery asks the same questions by `checks`.
"""
