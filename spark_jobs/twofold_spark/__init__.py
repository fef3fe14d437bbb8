"""Spark jobs that carry Twofold's topics into tables, and readers: `read_cut`, `branches`.

The names of `__all__` are the public interface (docs/reference/interface.md). They are imported on
first use, because they need Spark, and without Spark `twofold-spark` must still print a clear
message.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from twofold_spark.errors import TwofoldError
    from twofold_spark.readers.cut_tables import Tables, read_cut
    from twofold_spark.readers.global_transactions import branches
    from twofold_spark.sinks.cuts import Cut
    from twofold_spark.sinks.delta_tables import DeltaReader
    from twofold_spark.sinks.iceberg_tables import IcebergReader
    from twofold_spark.sinks.jdbc_reader import JdbcReader
    from twofold_spark.sources.kafka_client import Kafka
    from twofold_spark.sources.registry import Registry

__version__ = "0.1.0"
__all__ = [
    "Cut",
    "DeltaReader",
    "IcebergReader",
    "JdbcReader",
    "Kafka",
    "Registry",
    "Tables",
    "TwofoldError",
    "__version__",
    "branches",
    "read_cut",
]

_HOMES: Final = {
    "Cut": "sinks.cuts",
    "DeltaReader": "sinks.delta_tables",
    "IcebergReader": "sinks.iceberg_tables",
    "JdbcReader": "sinks.jdbc_reader",
    "Kafka": "sources.kafka_client",
    "Registry": "sources.registry",
    "Tables": "readers.cut_tables",
    "TwofoldError": "errors",
    "branches": "readers.global_transactions",
    "read_cut": "readers.cut_tables",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
