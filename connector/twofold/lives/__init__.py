"""Decides about tables' lives: loads, reloads, commands, and what they publish.

Pure: the folder imports the standard library only, its states are frozen and hashable, and it has
no clock. A life has two halves, each with one owner. `load_life` belongs to the thread that reads:
which loads have begun, are stopped or asked for. `topic_life` belongs to the worker: what is
published, in the order of the topic. `exchanged` has the values that pass between the halves.
docs/inside/backfill.md says why.
"""
