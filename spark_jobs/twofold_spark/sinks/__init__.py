"""Where the mirror is kept: Iceberg, Delta or PostgreSQL, behind one interface.

Every sink promises this. A table takes a batch whole or not at all. In the same commit it records
the sequence number up to which it was applied. So a retried batch skips the tables that have it,
whatever happened to Spark's checkpoint. A cut is published after all tables of a batch are
complete; a reader who follows cuts never sees half of one.
"""
