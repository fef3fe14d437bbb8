"""`--catalog-type`, `--catalog-uri`, `--catalog-file`: the Iceberg catalog that a job uses.

By default it is a JDBC catalog in `<warehouse>/catalog.db` (SQLite). Its compare-and-swap keeps two
writers apart on any file system, and pyiceberg reads it as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from twofold_spark.errors import UsageError

SQLITE_FILE = "catalog.db"
_SCHEMES = {"http": "rest", "https": "rest", "jdbc": "jdbc", "thrift": "hive"}


@dataclass(frozen=True, slots=True)
class CatalogChoice:
    """A kind of catalog, its address, and properties of Iceberg's client such as credentials."""

    KINDS: ClassVar[tuple[str, ...]] = ("sqlite", "rest", "jdbc", "hive", "glue")
    kind: str = "sqlite"
    uri: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def choose(cls, kind: str | None, uri: str | None, properties: Mapping[str, str] | None) -> CatalogChoice:
        """Make the choice; the address alone tells the kind of most catalogs."""
        found = kind or _SCHEMES.get((uri or "").partition(":")[0], "" if uri else "sqlite")
        if not found:
            raise UsageError(f"--catalog-uri {uri} does not tell the kind of the catalog: add --catalog-type")
        if found in ("rest", "jdbc", "hive") and not uri:
            raise UsageError(f"--catalog-type {found} needs --catalog-uri, the catalog's address")
        if found in ("sqlite", "glue") and uri:
            raise UsageError(f"--catalog-type {found} takes no --catalog-uri")
        return cls(found, uri or "", properties or {})

    def settings(self, warehouse: str, name: str) -> dict[str, str]:
        kind, uri = self.kind, self.uri
        if kind == "sqlite":
            kind, uri = "jdbc", f"jdbc:sqlite:{warehouse}/{SQLITE_FILE}?busy_timeout=30000"
        properties = {
            "type": kind,
            "warehouse": warehouse,
            **({"uri": uri} if uri else {}),
            **({"jdbc.schema-version": "V1"} if kind == "jdbc" else {}),
            **self.properties,
            # A reader that polls, and a retried batch, must see the present table, not a cached
            # one.
            "cache-enabled": "false",
        }
        prefix = f"spark.sql.catalog.{name}"
        return {
            prefix: "org.apache.iceberg.spark.SparkCatalog",
            **{f"{prefix}.{key}": value for key, value in properties.items()},
        }


WAREHOUSE_CATALOG = CatalogChoice()
"""The default: a file in the warehouse."""
