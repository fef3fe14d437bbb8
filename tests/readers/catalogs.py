"""The catalogs of the trial: what each program is told of them, and where `main` of a table is.

They are read as their own protocols say, without the product: REST over HTTP, SQLite by the table
that Iceberg's JDBC catalog keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy import create_engine, text

from fixtures.object_store import ObjectStore
from readers.metadata import main_version, read_metadata, read_sequence
from readers.rest_session import RestAccess, RestSession

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
        """Whether several tables change in one commit: then no read may be torn."""
        ...

    @property
    def offers_commit(self) -> bool:
        """Whether it says that it has such a commit, so that the mirror asks for it."""
        ...

    @property
    def watched(self) -> bool:
        """Whether the trial looks at the tables beside the readers: two tables by `look`."""
        ...

    def look(self, tables: Sequence[str]) -> Sequence[int] | None:
        """Return each table's last commit record, all as of one moment; None if the first changed
        meanwhile.
        """
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

    def __init__(
        self,
        kind: str,
        access: RestAccess,
        *,
        commits_at_once: bool,
        store: ObjectStore | None = None,
        watched: bool = False,
    ) -> None:
        self.kind = kind
        self.access = access
        self.commits_at_once = commits_at_once
        self.watched = watched
        self._store = store
        self._session = RestSession(access)

    @property
    def offers_commit(self) -> bool:
        return self._session.offers_commit

    def look(self, tables: Sequence[str]) -> Sequence[int] | None:
        """The first table is loaded again behind the others: it had one version all the while."""
        loaded = [self._session.load(SCHEMA, table, snapshots="all") for table in tables]
        if self.main(tables[0]) != main_version(loaded[0]):
            return None
        return [read_sequence(metadata) for metadata in loaded]

    def main(self, table: str) -> int:
        return main_version(self._session.load(SCHEMA, table, snapshots="refs"))

    def for_pyiceberg(self) -> Catalog:
        store = self._store
        ours = store.properties | store.credentials if store else {}
        return RestCatalog("rest", uri=self.access.address, **self.access.properties, **ours)

    def duckdb_attaches(self) -> Sequence[str]:
        access, store, secrets = self.access, self._store, []
        options = f"TYPE iceberg, ENDPOINT '{access.address}'"
        if access.credential:
            name, _, secret = access.credential.partition(":")
            scope = f", OAUTH2_SCOPE '{access.scope}'" if access.scope else ""
            secrets.append(
                f"CREATE SECRET entry (TYPE iceberg, CLIENT_ID '{name}', CLIENT_SECRET '{secret}', "
                f"OAUTH2_SERVER_URI '{access.token_address}'{scope})"
            )
            options += ", SECRET entry"
        else:
            options += ", AUTHORIZATION_TYPE 'none'"
        if store is not None:
            secrets.append(
                f"CREATE SECRET store (TYPE s3, KEY_ID '{store.access_key}', SECRET '{store.secret_key}', "
                f"REGION 'us-east-1', ENDPOINT '{store.endpoint.removeprefix('http://')}', URL_STYLE 'path', USE_SSL false)"
            )
            options += ", ACCESS_DELEGATION_MODE 'none'"
        return (*secrets, f"ATTACH '{access.warehouse}' AS lake ({options})")

    def duckdb_name(self, table: str) -> str:
        return f"lake.{SCHEMA}.{table}"


class SqlTables:
    """By the database of Iceberg's JDBC catalog. DuckDB knows no such catalog: it gets the file."""

    commits_at_once = False
    offers_commit = False
    watched = True

    def __init__(self, kind: str, url: str, catalog: str) -> None:
        self.kind = kind
        self._url = url
        self._catalog = catalog
        self._engine = create_engine(url)
        self._sequences: dict[str, int] = {}
        """By metadata file."""

    def locations(self) -> dict[str, str]:
        """Return the metadata file of each table, all as of one moment."""
        with self._engine.connect() as connection:
            rows = connection.execute(_LOCATIONS, {"catalog": self._catalog, "schema": SCHEMA}).all()
        return {str(name): str(location) for name, location in rows}

    def look(self, tables: Sequence[str]) -> Sequence[int] | None:
        locations = self.locations()
        seen = [locations[table] for table in tables]
        self._sequences = {each: self._sequences.get(each) or read_sequence(read_metadata(each)) for each in seen}
        return [self._sequences[each] for each in seen]

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
