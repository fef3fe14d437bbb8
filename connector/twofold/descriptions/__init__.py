"""Compares a table's description with a former one: is the table's topic still true?

Decides what a new description means for a topic, and which columns are hidden. Pure: the folder
imports the standard library only. Begin with `staleness`; `description` is the value that is
compared.
"""
