"""The comparison of a mirror with its source, while both are in use.

Decides whether a difference stays once the mirror has caught up. Reads the source database and the
mirror, and writes one message into the source's log. Begin with `verification`; `row_digest` says
what makes two rows equal.
"""
