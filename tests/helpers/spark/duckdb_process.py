"""DuckDB in a process of its own: a line of JSON with a statement in, a line with its rows out.

It runs in an environment of its own, because an extension fits one version of DuckDB exactly.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import duckdb


def main() -> None:
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    for name in ("avro", "httpfs", "iceberg"):
        connection.execute(f"LOAD '{_find_extension(name)}'")
    for line in sys.stdin:
        try:
            answer = {"rows": connection.execute(json.loads(line)).fetchall()}
        except duckdb.Error as error:
            answer = {"error": str(error)}
        print(json.dumps(answer, default=str), flush=True)


def _find_extension(name: str) -> Path:
    """Find the file in the wheel, so that nothing is downloaded and no home directory is needed."""
    found = importlib.util.find_spec(f"duckdb_extension_{name}")
    assert found is not None
    assert found.submodule_search_locations is not None
    folder = Path(found.submodule_search_locations[0])
    return folder / f"extensions/v{duckdb.__version__}/{name}.duckdb_extension"


main()
