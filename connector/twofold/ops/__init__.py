"""Operating a connector: metrics, health, the status page and logs while it runs, and `doctor`.
Reads servers and changes nothing.
"""
