"""The connector's and the Spark jobs' shared parts. Standard library only."""

__version__ = "0.1.0"
__all__ = ["__version__"]
