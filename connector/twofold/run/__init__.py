"""A run: recovery, then the turn again and again, until an error or a stop ends it.

Joins the other folders: their order, the threads and the clock. Touches servers through those
folders alone. Begin with `supervisor`, then `recovery`, which `assembly` ends, and `run`;
`executor` executes the bridge's actions.
"""
