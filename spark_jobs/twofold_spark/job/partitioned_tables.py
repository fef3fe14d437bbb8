"""Refuses tables and columns of `--partition-by` that the registry does not have."""

from __future__ import annotations

from collections.abc import Iterable

from twofold_spark.errors import SetupError
from twofold_spark.sinks.partitioning import Partitioning
from twofold_spark.sources.decoding import build_reader_schema, find_row_schema
from twofold_spark.sources.registry import Registry
from twofold_spark.sources.topic_names import subject_of


def check_partitioning(registry: Registry, prefixes: Iterable[str], partitioning: Partitioning) -> None:
    """Look for each table among the prefixes, before anything is merged.

    Columns that the source has dropped count: a table that exists may be partitioned by one.
    """
    for table, transforms in partitioning.tables:
        names = [subject_of(prefix, table) for prefix in prefixes]
        subjects = [subject for name in names if (subject := registry.find_subject(name)) is not None]
        if not subjects:
            raise SetupError(
                f"--partition-by names the table {table}, and the registry has no subject {' or '.join(names)}: "
                "correct the name, or start the connector first, which registers it"
            )
        for subject in subjects:
            columns = [column["name"] for column in find_row_schema(build_reader_schema(subject))["fields"]]
            for transform in transforms:
                if transform.column not in columns:
                    raise SetupError(
                        f"--partition-by {table}={transform} names a column that {subject.name} does not have: "
                        f"give one of {', '.join(columns)}"
                    )
