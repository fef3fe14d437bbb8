"""The rows that were there before: first load, tables added later, reload. docs/use/backfill.md says how and why."""
