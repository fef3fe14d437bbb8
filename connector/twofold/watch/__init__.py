"""A running connector, as people and their tools see it: page, metrics, health and logs.

Reads the run's `Observer` and the servers, and changes nothing. Begin with `watching`; `snapshot`
is what the page shows, `metrics` what Prometheus reads.
"""
