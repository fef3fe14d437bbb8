"""All that speaks to PostgreSQL. See docs/inside/source.md for what the server was seen to do."""
