"""The command `twofold-spark`: its options, its jobs, and their metrics."""
