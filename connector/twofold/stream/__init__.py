"""Messages of PostgreSQL's stream become whole source transactions with their rows.

Decides which rows belong to which transaction, and which rows wait in the spool. Touches the
spool's files alone. Begin with `collector`, then `source_transaction`; `gathered_outcomes` and
`streamed` are the two hot cases.
"""
