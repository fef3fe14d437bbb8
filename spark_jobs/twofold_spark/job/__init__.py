"""The command `twofold-spark`: its options, its jobs, and their metrics.

Decides what the options mean and which exit status an error has; the jobs are in `mirror`,
`changelog` and `verify`. Begin with `cli`, then `mirrors`; `arguments` has the options.
"""
