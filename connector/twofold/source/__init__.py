"""All that speaks to PostgreSQL. See docs/source.md for what the server was seen to do."""
