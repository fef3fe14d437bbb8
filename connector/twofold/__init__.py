"""Twofold: copies PostgreSQL's changes into Kafka exactly once, prepared transactions included."""

__version__ = "0.1.0"
__all__ = ["__version__"]
