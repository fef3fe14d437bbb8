"""The rows that were there before: first load, tables added later, reload. docs/inside/backfill.md says how and why."""
