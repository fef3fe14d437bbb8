"""Follows whether partitions send what their root needs, if they are published under the root's
name.

The catalog shows only the present (`source.flaws`). The stream describes each partition, and its
root, before the first row and after each change, and DDL messages say which table is whose
partition at that position. So no row of a partition with another identity is taken for a row of the
root, whenever it was written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from twofold.kafka.row_batch import VOID
from twofold.source.catalog import Catalog
from twofold.source.flaws import covers, refusal_of, uncovered
from twofold.source.messages import Relation
from twofold.tables.table_version import DescribedVersion, TableVersion
from twofold_avro.shapes import TableShape


class RootFlaws:
    """The partitions of one run that lack what their root needs."""

    def __init__(self, catalog: Catalog, make_void: Callable[[TableShape], TableVersion]) -> None:
        """`make_void`: makes a version that publishes no row."""
        self._catalog = catalog
        self._make_void = make_void
        self._partitions: dict[int, dict[int, str]] = {}
        """The names of flawed partitions: by the root's oid, then by their own."""

    def after(
        self, partition: Relation, above: Iterable[int], describe: Callable[[Relation], DescribedVersion]
    ) -> tuple[int, DescribedVersion] | None:
        """Return the root's oid and version after its partition was described; None without a root.

        `above`: the tables that have the partition at this position, as far as that is known.
        While a partition lacks something, the rows of all partitions are void, because the stream
        does not say which partition a row belongs to.
        """
        root = self._catalog.root_of(partition, above)
        if root is None:
            return None
        version = describe(root)
        flawed = self._partitions.setdefault(root.oid, {})
        key = frozenset(column.name for column in version.table.shape.key)
        if _is_covered(key, partition):
            flawed.pop(partition.oid, None)
        else:
            flawed[partition.oid] = f"{partition.schema}.{partition.table}"
        return root.oid, replace(version, table=self._void(version.table.shape, key, flawed)) if flawed else version

    def _void(self, shape: TableShape, key: frozenset[str], flawed: dict[int, str]) -> TableVersion:
        void = self._make_void(shape)
        names = ", ".join(sorted(flawed.values()))
        void.flaw = refusal_of([uncovered(shape.schema, shape.table, names, key, ())])
        assert void.topic == VOID
        return void

    def emptied(self, root: int) -> Relation | None:
        """Forget the root's flaws, because later rows are of repaired partitions. Return the root
        if it had any.
        """
        return self._catalog.described(root) if self._partitions.pop(root, None) else None


def _is_covered(key: frozenset[str], partition: Relation) -> bool:
    columns = {column.name for column in partition.columns}
    identity = frozenset(column.name for column in partition.columns if column.in_identity)
    return partition.replica_identity == "full" or not key <= columns or covers(key, identity)
