"""Everything that speaks to PostgreSQL: the replication session, the catalog, slots, locks, copies.

Decides whether server, slot and tables are fit, and nothing about transactions. On the way of a row
no other folder imports psycopg. Begin with `session`, then `decoder` and `catalog`;
docs/inside/source.md says how the server was seen to behave.
"""
