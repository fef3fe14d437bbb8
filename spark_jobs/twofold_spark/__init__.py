"""Spark jobs that carry Twofold's topics into tables."""
