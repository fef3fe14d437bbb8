"""The data contract: the meaning of Twofold's records in Kafka. Standard library only."""

__version__ = "0.1.0"
__all__ = ["__version__"]
