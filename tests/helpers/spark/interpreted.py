"""Spark interprets a plan instead of compiling Java for it. Of a few rows, as tests have them, the
compiler takes most of the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_SETTINGS: Final = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}


def make_environment(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a Python that starts a JVM with these settings of Spark too."""
    told = (f"--conf {name}={value}" for name, value in {**_SETTINGS, **settings}.items())
    return {"PYSPARK_SUBMIT_ARGS": " ".join((*told, "pyspark-shell"))}


ENVIRONMENT: Final = make_environment({})
"""Of a Python that starts a JVM. A folder with settings would be in the JVM's class path, and with
one there Java takes no archive of classes.
"""
