"""The data contract: what Twofold's records in Kafka mean. Importing this package needs nothing but the standard library."""

__version__ = "0.1.0"
__all__ = ["__version__"]
