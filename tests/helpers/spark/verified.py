"""`verify` of a test's mirror, against the database that the mirror is of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from fixtures.connector import Installation
from fixtures.spark import Lake
from helpers.spark.group_lake import GroupLake
from twofold_spark.sources.postgres_connection import build_jdbc_url
from twofold_spark.sources.source_database import SourceDatabase
from twofold_spark.verify.verification import TableComparison, Verification


@contextmanager
def verification(
    lake: Lake | GroupLake, prefix: str, database: str, report: Callable[[str], None] = print, **settings: Any
) -> Iterator[Verification]:
    """`verify` of a prefix's tables, with a connection to their database meanwhile."""
    with closing(SourceDatabase(lake.spark, build_jdbc_url(database))) as source:
        yield Verification(source, reader=lake.reader, prefix=prefix, report=report, **settings)


def verify_members(group: GroupLake, patience: float = 5) -> Iterator[tuple[Installation, dict[str, TableComparison]]]:
    """Each member with the comparisons of its tables."""
    for prefix, here in group.members.items():
        with verification(group, prefix, here.conninfo, publication=prefix, patience=patience) as verify:
            yield here, {each.table: each for each in verify.run()}
