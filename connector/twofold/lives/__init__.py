"""Decides about tables' lives: loads, reloads, commands, and what they publish.

Pure: it imports the standard library only, its states are frozen and hashable, and it has no clock.
A life has two halves, each with one owner. `load_life` belongs to the thread that reads: what is
begun, stopped and asked for. `topic_life` belongs to the worker: what is published, in the order of
the topic. `exchanged` has what passes between them. docs/inside/backfill.md says why.
"""
