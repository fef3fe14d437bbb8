"""Programs that read the mirror's Iceberg tables by their plain names, while cuts are published.

`python -m readers` counts the reads that saw two tables of different cuts.
"""
