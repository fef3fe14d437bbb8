"""Source groups: what this connector asks of its siblings, and what a branch in doubt means there.

Decides which statement keeps a global transaction whole. Reads the members' topics in Kafka and
`pg_prepared_xacts`. Begin with `frontier_asks`; docs/inside/group.md has the protocol.
"""
