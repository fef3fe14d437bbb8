"""`--sink`: the sink that a job writes to, or that `verify` reads."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import ClassVar

from pyspark.sql import SparkSession

from twofold_spark.session import absolute_folder
from twofold_spark.sinks.delta_sink import DeltaPlace
from twofold_spark.sinks.delta_tables import DeltaReader
from twofold_spark.sinks.iceberg_place import IcebergPlace
from twofold_spark.sinks.iceberg_tables import FORMAT_VERSION, IcebergReader
from twofold_spark.sinks.interface import Reader
from twofold_spark.sinks.jdbc_reader import JdbcReader
from twofold_spark.sinks.jdbc_sink import JdbcPlace
from twofold_spark.sinks.merge_plan import WriteMode
from twofold_spark.sinks.partitioning import NO_PARTITIONING, Partitioning
from twofold_spark.sinks.place import Place
from twofold_spark.sinks.sharding import NO_SHARDING, Sharding
from twofold_spark.sources.postgres_connection import build_jdbc_url


@dataclass(frozen=True, slots=True)
class SinkChoice:
    """A sink by name, and where it is."""

    HELP: ClassVar[str] = "iceberg (the catalog; the default) | delta=<a folder> | jdbc=<a PostgreSQL database>"
    name: str
    address: str = ""
    partitioning: Partitioning = NO_PARTITIONING
    """Of Iceberg's tables alone."""

    @classmethod
    def parse(cls, text: str) -> SinkChoice:
        name, _, address = text.partition("=")
        if (name == "iceberg" and not address) or (name in ("delta", "jdbc") and address):
            return cls(name, address)
        raise ValueError(f"{name!r} must be one of: {cls.HELP}")  # the address may hold a password

    def make_place(
        self,
        *,
        of_group: bool,
        sharding: Sharding = NO_SHARDING,
        catalog: str,
        format_version: int = FORMAT_VERSION,
        write_mode: WriteMode = "by-size",
    ) -> Place:
        match self.name:
            case "delta":
                return DeltaPlace(self._folder, of_group=of_group, sharding=sharding)
            case "jdbc":
                return JdbcPlace(build_jdbc_url(self.address), of_group=of_group, sharding=sharding)
        return IcebergPlace(
            catalog,
            of_group=of_group,
            sharding=sharding,
            format_version=format_version,
            write_mode=write_mode,
            partitioning=self.partitioning,
        )

    def make_reader(self, spark: SparkSession, *, catalog: str) -> Reader:
        match self.name:
            case "delta":
                return DeltaReader(spark, self._folder)
            case "jdbc":
                return JdbcReader(spark, build_jdbc_url(self.address))
        return IcebergReader(spark, catalog)

    def default_checkpoint(self, warehouse: str, prefix: str | None) -> str:
        """Return a checkpoint that no other mirror uses by default; without a prefix, a group's.

        A mirror that started from another's checkpoint would miss what that one had applied.
        """
        name = "mirror" if prefix is not None else "group"
        if self.name != "iceberg":  # the catalog's mirror has the plain name, because a catalog takes one prefix
            place = self._folder if self.name == "delta" else build_jdbc_url(self.address).partition("?")[0]
            whose = f"{self.name}-{prefix}" if prefix is not None else self.name
            name = f"{name}-{whose}-{hashlib.sha256(place.encode()).hexdigest()[:12]}"
        return f"{warehouse}/checkpoints/{name}"

    @property
    def _folder(self) -> str:
        return absolute_folder(self.address)
