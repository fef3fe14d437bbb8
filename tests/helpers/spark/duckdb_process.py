"""DuckDB in a process of its own: a line of JSON with a statement in, a line with its rows out; or,
with a script and its arguments, that script.

It runs in an environment of its own, because an extension fits one version of DuckDB exactly.
"""

from __future__ import annotations

import importlib.util
import json
import os
import runpy
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb

EXTENSIONS = ("avro", "httpfs", "iceberg")


def main() -> None:
    if sys.argv[1:]:
        run_script(sys.argv[1:])
        return
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    for name in EXTENSIONS:
        connection.execute(f"LOAD '{_find_extension(name)}'")
    for line in sys.stdin:
        try:
            answer = {"rows": connection.execute(json.loads(line)).fetchall()}
        except duckdb.Error as error:
            answer = {"error": str(error)}
        print(json.dumps(answer, default=str), flush=True)


def run_script(words: list[str]) -> None:
    """Run a script in a home directory where the extensions are installed."""
    ((platform,),) = duckdb.sql("PRAGMA platform").fetchall()
    with TemporaryDirectory() as home:
        os.environ["HOME"] = home
        installed = Path(home, f".duckdb/extensions/v{duckdb.__version__}/{platform}")
        installed.mkdir(parents=True)
        for name in EXTENSIONS:
            shutil.copy(_find_extension(name), installed)
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")


def _find_extension(name: str) -> Path:
    """Find the file in the wheel, so that nothing is downloaded and no home directory is needed."""
    found = importlib.util.find_spec(f"duckdb_extension_{name}")
    assert found is not None
    assert found.submodule_search_locations is not None
    folder = Path(found.submodule_search_locations[0])
    return folder / f"extensions/v{duckdb.__version__}/{name}.duckdb_extension"


main()
