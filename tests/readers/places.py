"""A lake in each kind of catalog, with its servers: what the command tries, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from fixtures.catalogs import RestCatalogServer, one_at_a_time
from fixtures.spark import Lake, new_lake
from helpers.spark.writer import Writer
from readers.catalogs import CatalogOfTables, RestTables, SqlTables
from twofold_spark.catalog_choice import CatalogChoice

KINDS: Final = ("rest", "rest-apart", "sqlite")
"""`rest-apart` is a REST catalog that does not offer the commit of several tables."""

Place = tuple[Lake, CatalogOfTables, Sequence[str]]
"""The lake, its catalog, and the options that bring the mirror there."""


@contextmanager
def opened_place(kind: str, spark: SparkSession, writer: Writer, folder: Path) -> Iterator[Place]:
    """Make the place, with servers of its own that end with it."""
    folder.mkdir(parents=True)
    with ExitStack() as ending:
        if kind == "sqlite":
            lake, url = new_lake(spark, writer, folder), f"sqlite:///{folder}/catalog.db"
            tables = SqlTables(kind, url, lake.catalog)
            ending.callback(tables.close)
            yield lake, tables, ()
            return
        server = RestCatalogServer(folder)
        ending.callback(server.stop)
        server.start()
        yield ending.enter_context(rest_place(spark, writer, server, at_once=kind == "rest"))


@contextmanager
def rest_place(spark: SparkSession, writer: Writer, server: RestCatalogServer, *, at_once: bool) -> Iterator[Place]:
    """Iceberg's own server of its tests, behind the proxy that makes its commits one."""
    with one_at_a_time(server, several_tables=at_once) as (address, _):
        choice = CatalogChoice.choose(None, address, {"warehouse": str(server.folder)})
        file = server.folder / "catalog.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in choice.properties.items()))
        lake = new_lake(spark, writer, server.folder, choice)
        options = ("--catalog-uri", choice.uri, "--catalog-file", str(file))
        yield lake, RestTables(address, commits_at_once=at_once), options
