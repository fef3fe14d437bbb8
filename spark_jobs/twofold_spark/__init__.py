"""Spark jobs that carry Twofold's topics into tables."""

__version__ = "0.1.0"
