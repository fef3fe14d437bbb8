"""Puts the data policy into the shapes of one run's tables, by the columns' names and numbers.

A rule stays with the column that it first hides, and applies to all partitions of its table. The
pin of the table's topic keeps the numbers of the hidden columns.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from twofold.config import ColumnRule
from twofold.descriptions.description import Description
from twofold.descriptions.hidden_columns import CatalogTable, HiddenColumns, MessageColumn, hidden_now, locate
from twofold.source.catalog import Catalog
from twofold.source.messages import Relation
from twofold.tables.data_policy import DataPolicy
from twofold.tables.pins import former_pins
from twofold_avro.records import Pin
from twofold_avro.shapes import TableShape

_log = logging.getLogger(__name__)
_WILD = frozenset("*?[")


class ColumnPolicy:
    """The data policy of one run's tables."""

    def __init__(self, policy: DataPolicy, catalog: Catalog, publication: str) -> None:
        self._policy = policy
        self._catalog = catalog
        self._publication = publication

    def hide(
        self,
        shape: TableShape,
        relation: Relation,
        topic: str,
        pins: Mapping[str, Pin],
        described: Description | None = None,
        *,
        committed: bool = True,
    ) -> tuple[TableShape, HiddenColumns | None]:
        """Return the shape with its policy, and the hidden columns for the pin; None if the pin has
        them.

        `described`: the table as a DDL message has it. Nobody knows who wrote the message, so the
        message hides more and shows nothing. `committed`: the description in `relation` is
        committed. Refused: a column that was hidden would be shown.
        """
        if not self._policy.rules:
            return shape, None
        now, pin = self._catalog.columns_now(shape.oid), pins.get(topic)
        before = _hidden_before(shape.oid, pin, former_pins(pins, topic, shape.oid))
        columns = [MessageColumn(column.name, column.type_oid) for column in relation.columns]
        found = locate(before, now, columns, committed=committed)
        if described is not None:
            found = found.with_more(
                locate(before, CatalogTable(described.catalog_columns, frozenset()), columns, committed=True)
            )
        above = now.above if now else ()
        names = [*(f"{schema}.{table}" for schema, table in above), *_former_roots(shape.oid, pins)]
        anywhere = pin is None and not self._is_published(relation)
        hidden = self._policy.apply(shape, found, names, anywhere=anywhere)
        if doubtful := [
            each.name for place, each in enumerate(hidden.columns) if place in found.possible and each.policy
        ]:
            _log.warning(
                "%s.%s: %s may be what the data policy hides under another name, and is left out until the catalog shows what it is",
                shape.schema,
                shape.table,
                ", ".join(doubtful),
            )
        if now is None or found.numbers is None or not committed or doubtful:
            return hidden, None
        rules = [column.rule if column.policy else None for column in hidden.columns]
        return hidden, hidden_now(before, now, found.numbers, rules)

    def _is_published(self, relation: Relation) -> bool:
        found = self._catalog.published(self._publication, relation.schema, relation.table)
        return found is not None and found.oid == relation.oid

    def idle_rules(self, published: Iterable[Relation]) -> list[ColumnRule]:
        """Return the rules that hide no column of the published tables, and cannot hide a later
        one.

        A pattern of tables may be meant for columns to come, if the pattern has a table.
        """
        if not self._policy.rules:
            return []
        tables, columns = list[str](), list[str]()
        for each in published:
            now = self._catalog.columns_now(each.oid)
            names = [f"{schema}.{table}" for schema, table in [(each.schema, each.table), *(now.above if now else ())]]
            tables += names
            columns += [f"{table}.{column.name}" for table in names for column in each.columns]
        return [rule for rule in self._policy.rules if rule.action != "keep" and _is_idle(rule, tables, columns)]


def _is_idle(rule: ColumnRule, tables: list[str], columns: list[str]) -> bool:
    pattern = rule.column.rpartition(".")[0]
    if _WILD.isdisjoint(pattern):
        return not any(map(rule.matches, columns))
    return bool(tables) and not any(fnmatchcase(table, pattern) for table in tables)


def _hidden_before(oid: int, pin: Pin | None, former: Sequence[tuple[str, Pin]]) -> HiddenColumns:
    """Return the known hidden columns of the table, also of its former names."""
    if pin is not None and pin.oid == oid:
        return HiddenColumns.from_text(pin.hidden)
    return HiddenColumns.from_text(former[0][1].hidden) if former else HiddenColumns()


def _former_roots(oid: int, pins: Mapping[str, Pin]) -> Iterable[str]:
    """Yield the tables of which this table was a partition at the last look."""
    for pin in pins.values():
        if pin.stored and f"[{oid}," in pin.stored and _has_partition(pin.stored, oid):
            yield f"{pin.schema}.{pin.table}"


def _has_partition(stored: str, oid: int) -> bool:
    described = Description.from_text(stored)
    return described is not None and any(partition == oid for partition, _ in described.partitions)
