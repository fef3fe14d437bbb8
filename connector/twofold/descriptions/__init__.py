"""Compares what a table is with what it was: whether its topic still says the truth.

Decides what a new description means for a topic, and which columns are hidden. Pure: it imports the
standard library only. Begin with `staleness`; `description` is the value that is compared.
"""
