"""Joins source, bridge and sink: the turn, recovery's order, the threads and the clock."""
