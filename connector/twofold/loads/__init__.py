"""Loads the rows that tables already have: first load, tables added later, reload.

Carries out what `lives` decides: reads tables in chunks, on threads with PostgreSQL sessions of
their own, and merges a chunk's rows with the stream's. Begin with `loader`, then
`load_merger`. docs/inside/backfill.md says how and why.
"""
