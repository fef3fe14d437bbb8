"""Loads the rows that tables already have: first load, tables added later, reload.

Executes the decisions of `lives`: reads tables in chunks, on threads with PostgreSQL sessions of
their own, and merges a chunk's rows with the stream's rows. Begin with `loader`, then
`load_merger`. docs/inside/backfill.md says how and why.
"""
