"""Spark interprets a plan instead of compiling Java for it. Of a few rows, as tests have them, the
compiler takes most of the time.
"""

from __future__ import annotations

from typing import Final

ENVIRONMENT: Final = {
    "PYSPARK_SUBMIT_ARGS": "--conf spark.sql.codegen.wholeStage=false --conf spark.sql.codegen.factoryMode=NO_CODEGEN pyspark-shell"
}
"""Of a Python that starts a JVM. A folder with settings would be in the JVM's class path, and with
one there Java takes no archive of classes.
"""
