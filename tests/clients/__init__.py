"""Programs that nobody here wrote, as readers of a connector's topics.

`python -m clients` tries each with each type.
"""
