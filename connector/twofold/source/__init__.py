"""Everything that speaks to PostgreSQL.

docs/inside/source.md says how the server was seen to behave.
"""
