"""`read_global_cut`: all tables of all members of a source group, with every global transaction
whole or absent. `cut.torn` has the exceptions, which `mirror --global-wait` allows.

    cut = read_global_cut(spark)
    cut["bank_east"]["public.accounts"].unionByName(cut["bank_west"]["public.accounts"])
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pyspark.sql import SparkSession

from twofold_spark.errors import SetupError
from twofold_spark.readers.cut_tables import Tables, read_cut
from twofold_spark.session import CATALOG
from twofold_spark.sinks.global_cut_table import GlobalCutTable, member_catalog
from twofold_spark.sinks.global_cuts import GlobalCut


class GlobalTables(Mapping[str, Tables]):
    """The cut of each member by its prefix; read on access."""

    def __init__(self, spark: SparkSession, catalog: str, cut: GlobalCut) -> None:
        self.cut = cut
        self._spark = spark
        self._catalog = catalog

    @property
    def torn(self) -> tuple[str, ...]:
        """The global ids of which this cut may show a part: they waited for longer than
        `mirror --global-wait`.
        """
        return tuple(self.cut.torn)

    def __getitem__(self, prefix: str) -> Tables:
        sequence = self.cut.members[prefix].sequence
        if not sequence:
            raise SetupError(f"the global cut {self.cut} has nothing of {prefix} yet")
        tables = read_cut(self._spark, sequence=sequence, catalog=member_catalog(self._catalog, prefix))
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


def read_global_cut(spark: SparkSession, *, catalog: str = CATALOG) -> GlobalTables:
    """Return the last global cut of a group's mirror."""
    cut = GlobalCutTable(spark, catalog).read_last()
    if cut is None:
        raise SetupError(
            f"no global cut is published in the catalog {catalog}: run `twofold-spark mirror` of a source group"
        )
    return GlobalTables(spark, catalog, cut)
