"""Source groups: what this connector asks of its siblings, and what their topics say.

Reads the members' topics in Kafka and `pg_prepared_xacts`; `inspect.in_doubt` says what a branch in
doubt means there. Begin with `frontier_asks`; docs/inside/group.md has the protocol.
"""
