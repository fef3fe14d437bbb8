"""The room that loads existing rows: first load, tables added later, reload.

docs/use/backfill.md explains it.
"""
