"""A lake in each kind of catalog and store, with its servers: what the command tries, one after the
other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from fixtures.catalogs import RestCatalogServer, catalog_options, one_at_a_time
from fixtures.lakekeeper import Lakekeeper
from fixtures.object_store import ObjectStore, new_stored_lake, opened_moto, opened_stored_lake
from fixtures.polaris import Polaris
from fixtures.seaweedfs import TABLES_BUCKET, SeaweedFS
from fixtures.spark import Lake, new_lake
from helpers.spark.writer import Writer
from readers.catalogs import CatalogOfTables, RestTables, SqlTables
from readers.rest_session import RestAccess
from twofold_spark.catalog_choice import CatalogChoice

KINDS: Final = ("rest", "rest-apart", "sqlite", "seaweedfs", "polaris", "lakekeeper")
"""`rest-apart` is a REST catalog that does not offer the commit of several tables; `seaweedfs` is
SeaweedFS's own, whose tables are in its own store; `polaris` is the Apache Polaris of the folder
`TWOFOLD_POLARIS`; `lakekeeper` is the program `TWOFOLD_LAKEKEEPER`, whose tables are in SeaweedFS.
"""
STORES: Final = ("files", "moto", "seaweedfs")

Place = tuple[Lake, CatalogOfTables, Sequence[str]]
"""The lake, its catalog, and the options that bring the mirror there."""


@contextmanager
def opened_place(kind: str, store: str, spark: SparkSession, writer: Writer, folder: Path) -> Iterator[Place]:
    """Make the place, with servers of its own that end with it."""
    folder.mkdir(parents=True)
    with ExitStack() as ending:
        match kind:
            case "sqlite":
                lake, url = new_lake(spark, writer, folder), f"sqlite:///{folder}/catalog.db"
                tables = SqlTables(kind, url, lake.catalog)
                ending.callback(tables.close)
                yield lake, tables, ()
            case "seaweedfs":
                yield _make_seaweedfs_place(spark, writer, _start_seaweedfs(folder, ending), folder)
            case "polaris":
                yield _make_polaris_place(spark, writer, folder, ending)
            case "lakekeeper":
                yield _make_lakekeeper_place(spark, writer, folder, ending)
            case _ if store == "files":
                server = RestCatalogServer(folder)
                ending.callback(server.stop)
                server.start()
                yield ending.enter_context(rest_place(spark, writer, server, at_once=kind == "rest"))
            case _:
                there = _open_store(store, folder, ending)
                lake = ending.enter_context(opened_stored_lake(spark, writer, folder, there, at_once=True))
                access = RestAccess(lake.catalog_choice.uri)
                yield lake, RestTables(f"rest, {store}", access, commits_at_once=True, store=there), ()


@contextmanager
def rest_place(spark: SparkSession, writer: Writer, server: RestCatalogServer, *, at_once: bool) -> Iterator[Place]:
    """Iceberg's own server of its tests, behind the proxy that makes its commits one."""
    with one_at_a_time(server, several_tables=at_once) as (address, _):
        choice = CatalogChoice.choose(None, address, {"warehouse": str(server.folder)})
        lake = new_lake(spark, writer, server.folder, choice)
        tables = RestTables("rest" if at_once else "rest-apart", RestAccess(address), commits_at_once=at_once)
        yield lake, tables, catalog_options(choice, server.folder)


def _make_seaweedfs_place(spark: SparkSession, writer: Writer, server: SeaweedFS, folder: Path) -> Place:
    """Nothing of the tests stands before this catalog, so the trial watches it."""
    server.make_tables_bucket()
    store = server.store
    access = RestAccess(
        server.catalog_address, f"s3://{TABLES_BUCKET}", credential=f"{store.access_key}:{store.secret_key}"
    )
    lake = new_stored_lake(spark, writer, folder, store, access.address, access.properties)
    return lake, RestTables("seaweedfs", access, commits_at_once=False, store=store, watched=True), ()


def _make_polaris_place(spark: SparkSession, writer: Writer, folder: Path, ending: ExitStack) -> Place:
    """Nothing of the tests stands before this catalog, and it is watched, so that the trial shows
    whether its commit of several tables is one.
    """
    server = Polaris(folder)
    ending.callback(server.stop)
    server.start()
    writing, reading = server.make_catalog()
    choice = CatalogChoice.choose(None, writing.address, writing.properties)
    lake = new_lake(spark, writer, folder / "lake", choice)
    tables = RestTables("polaris", reading, commits_at_once=True, watched=True)
    return lake, tables, catalog_options(choice, folder)


def _make_lakekeeper_place(spark: SparkSession, writer: Writer, folder: Path, ending: ExitStack) -> Place:
    """It is watched, as Polaris is."""
    store = _start_seaweedfs(folder, ending).store
    server = Lakekeeper(folder, store)
    ending.callback(server.stop)
    server.start()
    server.make_warehouse()
    lake = new_stored_lake(spark, writer, folder, store, server.access.address, server.access.properties)
    return lake, RestTables("lakekeeper", server.access, commits_at_once=True, store=store, watched=True), ()


def _open_store(name: str, folder: Path, ending: ExitStack) -> ObjectStore:
    return ending.enter_context(opened_moto(folder)) if name == "moto" else _start_seaweedfs(folder, ending).store


def _start_seaweedfs(folder: Path, ending: ExitStack) -> SeaweedFS:
    server = SeaweedFS(folder)
    ending.callback(server.stop)
    server.start()
    return server
