"""The catalogs of the trial: what each program is told of them, and where `main` of a table is.

They are read as their own protocols say, without the product: REST over HTTP, SQLite by the table
that Iceberg's JDBC catalog keeps.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Sequence
from typing import Final, Protocol

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy import create_engine, text

from fixtures.object_store import ObjectStore
from readers.metadata import main_version, read_metadata

SCHEMA: Final = "public"
_LOCATIONS: Final = text(
    "SELECT table_name, metadata_location FROM iceberg_tables "
    "WHERE catalog_name = :catalog AND table_namespace = :schema"
)


class CatalogOfTables(Protocol):
    """A catalog with the mirror's tables."""

    @property
    def kind(self) -> str: ...
    @property
    def commits_at_once(self) -> bool:
        """Whether several tables change in one commit."""
        ...

    def main(self, table: str) -> int:
        """Return the snapshot that the plain name reads."""
        ...

    def for_pyiceberg(self) -> Catalog: ...
    def duckdb_attaches(self) -> Sequence[str]:
        """Return the statements that DuckDB runs once."""
        ...

    def duckdb_name(self, table: str) -> str:
        """Return what stands for the table in DuckDB's SQL."""
        ...


class RestTables:
    """By Iceberg's REST protocol; the files are this machine's, or in a store that speaks S3."""

    def __init__(self, address: str, *, commits_at_once: bool, store: ObjectStore | None = None) -> None:
        self.address = address
        self.commits_at_once = commits_at_once
        self._store = store
        self.kind = "rest" if commits_at_once else "rest-apart"

    def main(self, table: str) -> int:
        url = f"{self.address}/v1/namespaces/{SCHEMA}/tables/{table}?snapshots=refs"
        with urllib.request.urlopen(url, timeout=60) as answer:
            return main_version(json.load(answer)["metadata"])

    def for_pyiceberg(self) -> Catalog:
        store = self._store
        return RestCatalog("rest", uri=self.address, **(store.properties | store.credentials if store else {}))

    def duckdb_attaches(self) -> Sequence[str]:
        catalog = f"TYPE iceberg, ENDPOINT '{self.address}', AUTHORIZATION_TYPE 'none'"
        if (store := self._store) is None:
            return (f"ATTACH '' AS lake ({catalog})",)
        secret = (
            f"TYPE s3, KEY_ID '{store.access_key}', SECRET '{store.secret_key}', REGION 'us-east-1', "
            f"ENDPOINT '{store.endpoint.removeprefix('http://')}', URL_STYLE 'path', USE_SSL false"
        )
        return (
            f"CREATE SECRET store ({secret})",
            f"ATTACH '' AS lake ({catalog}, ACCESS_DELEGATION_MODE 'none')",
        )

    def duckdb_name(self, table: str) -> str:
        return f"lake.{SCHEMA}.{table}"


class SqlTables:
    """By the database of Iceberg's JDBC catalog. DuckDB knows no such catalog: it gets the file."""

    commits_at_once = False

    def __init__(self, kind: str, url: str, catalog: str) -> None:
        self.kind = kind
        self._url = url
        self._catalog = catalog
        self._engine = create_engine(url)

    def locations(self) -> dict[str, str]:
        """Return the metadata file of each table, all as of one moment."""
        with self._engine.connect() as connection:
            rows = connection.execute(_LOCATIONS, {"catalog": self._catalog, "schema": SCHEMA}).all()
        return {str(name): str(location) for name, location in rows}

    def main(self, table: str) -> int:
        return main_version(read_metadata(self.locations()[table]))

    def for_pyiceberg(self) -> Catalog:
        return SqlCatalog(self._catalog, uri=self._url)

    def duckdb_attaches(self) -> Sequence[str]:
        return ()

    def duckdb_name(self, table: str) -> str:
        return f"iceberg_scan('{self.locations()[table]}')"

    def close(self) -> None:
        self._engine.dispose()
