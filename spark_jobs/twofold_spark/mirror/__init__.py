"""Current-state tables: whole transactions, one consistent cut after another.

Decides which commit records make a batch, what their rows change, and what a cut says. Reads by
`sources`, writes by `sinks`. Begin with `mirror_job`, then `table_merge`; `group_mirror` brings the
members of a source group to one cut.
"""
