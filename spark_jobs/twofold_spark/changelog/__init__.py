"""Every committed change, appended to a table for each source table.

Decides which offsets a table lacks, and when an append may be repeated. Reads Kafka and the
registry, writes Iceberg tables. Begin with `changelog_job`, then `table_append`; `changelog_tables`
says which table has a topic's changes, `table_position` how far a table is.
"""
