"""`read_global_cut`: all tables of all members of a source group, with every global transaction
whole or absent.

    cut = read_global_cut(spark)
    cut["bank_east"]["public.accounts"].unionByName(cut["bank_west"]["public.accounts"])
    cut = read_global_cut(spark, reader=DeltaReader(spark, "/lake/delta"))

In PostgreSQL every snapshot is at a global cut: read the tables in one REPEATABLE READ transaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pyspark.sql import SparkSession

from twofold_spark.errors import SetupError, UsageError
from twofold_spark.readers.cut_tables import Tables, read_cut
from twofold_spark.session import CATALOG
from twofold_spark.sinks.delta_group import DeltaGroup
from twofold_spark.sinks.delta_tables import DeltaReader
from twofold_spark.sinks.global_cuts import GlobalCut
from twofold_spark.sinks.iceberg_group import IcebergGroup
from twofold_spark.sinks.interface import Reader


class GlobalTables(Mapping[str, Tables]):
    """The cut of each member by its prefix; read on access."""

    def __init__(self, spark: SparkSession, place: DeltaGroup | IcebergGroup, cut: GlobalCut) -> None:
        self.cut = cut
        self.place = place
        self._spark = spark

    def __getitem__(self, prefix: str) -> Tables:
        sequence = self.cut.members[prefix].sequence
        if not sequence:
            raise SetupError(f"the global cut {self.cut} has nothing of {prefix} yet")
        tables = read_cut(self._spark, sequence=sequence, reader=self.place.make_reader(self._spark, prefix))
        if tables.cut.sequence != sequence:
            raise SetupError(
                f"the global cut {self.cut} names the cut {sequence} of {prefix}, which is not kept or not whole; "
                f"the last one before it is {tables.cut}: read the last global cut again"
            )
        return tables

    def __iter__(self) -> Iterator[str]:
        return iter(self.cut.members)

    def __len__(self) -> int:
        return len(self.cut.members)


def read_global_cut(spark: SparkSession, *, catalog: str = CATALOG, reader: Reader | None = None) -> GlobalTables:
    """Return the last global cut, of the Iceberg catalog or of a `DeltaReader`."""
    match reader:
        case None:
            place: DeltaGroup | IcebergGroup = IcebergGroup(catalog)
        case DeltaReader():
            place = DeltaGroup(reader.folder)
        case _:
            raise UsageError(
                "read_global_cut takes a catalog or a DeltaReader. In PostgreSQL read the tables by SQL, in one "
                "REPEATABLE READ transaction: Spark reads each table in another one"
            )
    cut = place.make_cuts(spark).read_last()
    if cut is None:
        raise SetupError(f"no global cut is published in {place}: run `twofold-spark mirror` of a source group")
    return GlobalTables(spark, place, cut)
