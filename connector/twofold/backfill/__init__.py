"""The room that loads existing rows: first load, tables added later, reload.

docs/inside/backfill.md says how and why.
"""
