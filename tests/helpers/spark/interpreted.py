"""Spark interprets a plan instead of compiling Java for it. Of a few rows, as tests have them, the
compiler takes most of the time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

SETTINGS: Final = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}


def write_settings(folder: Path) -> dict[str, str]:
    """Write them for a JVM that starts with this environment."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.joinpath("spark-defaults.conf").write_text("".join(f"{k} {v}\n" for k, v in SETTINGS.items()))
    return {"SPARK_CONF_DIR": str(folder)}
