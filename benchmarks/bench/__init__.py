"""Twofold beside its peer and its source's own limit, measured on one machine in one run.

    python -m bench            the backlogs (`make bench`, QUICK=1 for a tenth)
    python -m bench.latency    from COMMIT and COMMIT PREPARED to what a consumer sees

It starts its own servers and ends them, and writes into `benchmarks/results/`.
"""
