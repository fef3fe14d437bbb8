"""Compares what a table is with what it was: whether its topic still says the truth. Pure."""
