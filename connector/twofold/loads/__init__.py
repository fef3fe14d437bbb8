"""Loads the rows that tables already have: first load, tables added later, reload.

Carries out what `lives` decides: reads tables in chunks, on threads with PostgreSQL sessions of
their own, and lets a chunk's rows pass the gate among the stream's. Begin with `loader`, then
`gate`. docs/inside/backfill.md says how and why.
"""
