"""Java's classes by their full names, without asking the JVM where they are.

`spark._jvm.org.apache...` asks it for each part of a name, and the JVM looks in vain for a class of
each package. In a batch of six tables that was a twentieth of its work.
"""

from __future__ import annotations

from typing import Any

from py4j.java_gateway import JavaClass
from pyspark.sql import SparkSession


def java_class(spark: SparkSession, name: str) -> Any:
    """Return the class; a name that does not exist fails when it is used."""
    gateway: Any = spark.sparkContext._gateway
    return JavaClass(name, gateway._gateway_client)


def set_log_level(spark: SparkSession, logger: str, level: str) -> None:
    log4j = "org.apache.logging.log4j"
    configurator = java_class(spark, f"{log4j}.core.config.Configurator")
    configurator.setLevel(logger, getattr(java_class(spark, f"{log4j}.Level"), level))
