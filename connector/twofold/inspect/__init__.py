"""What the servers know of a connector, whether it runs or not: status, what is in doubt, audit.

Decides whether progress, commit records, slot and server agree, and which statement may end what is
in doubt. Reads PostgreSQL and Kafka, and changes nothing. Begin with `status_report` and
`in_doubt`; recovery asks the same questions by `checks`.
"""
