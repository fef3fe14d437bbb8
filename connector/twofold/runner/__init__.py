"""Joins source, bridge and sink: the turn, the order of recovery, the threads and the clock."""
