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
from twofold.descriptions.hidden_columns import (
    CatalogTable,
    Hidden,
    HiddenColumns,
    Located,
    MessageColumn,
    hidden_now,
    locate,
)
from twofold.source.catalog import Catalog
from twofold.source.messages import Relation
from twofold.tables.data_policy import DataPolicy
from twofold.tables.pins import former_pins
from twofold_avro.records import Pin
from twofold_avro.shapes import TableShape

_log = logging.getLogger(__name__)
_WILD = frozenset("*?[")
NONE_MET: Mapping[int, HiddenColumns] = {}


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
        met: Mapping[int, HiddenColumns] = NONE_MET,
        committed: bool = True,
    ) -> tuple[TableShape, HiddenColumns | None]:
        """Return the shape with its policy, and the hidden columns for the pin; None if the pin has
        them.

        `met`: for a table without a pin, the hidden columns of what this run has met, by oid.
        A partition that was attached and detached between two looks has them nowhere else.

        `described`: the table as a DDL message has it. Nobody knows who wrote the message, so the
        message hides more and shows nothing. `committed`: the description in `relation` is
        committed. Refused: a column that was hidden would be shown.
        """
        if not self._policy.rules:
            return shape, None
        now, pin = self._catalog.columns_now(shape.oid), pins.get(topic)
        roots = _former_roots(shape.oid, pins)
        names = [f"{schema}.{table}" for schema, table in (now.above if now else ())]
        names += [f"{root.schema}.{root.table}" for root in roots]
        anywhere = pin is None and not self._is_published(relation)
        before, rules = _hidden_before(shape.oid, pin, former_pins(pins, topic, shape.oid), met), dict[str, str]()
        if not before.columns or names:
            related = pins.values() if anywhere else roots
            rules = self._rules_in_tree(shape, names, pins, {each.oid: True for each in related if each.oid})
            before = _hidden_as_in_tree(before, rules, now)
        columns = [MessageColumn(column.name, column.type_oid) for column in relation.columns]
        found = locate(before, now, columns, committed=committed)
        if described is not None:
            found = found.with_more(
                locate(before, CatalogTable(described.catalog_columns, frozenset()), columns, committed=True)
            )
        if now is None:
            found = found.with_more(
                Located({at: rules[c.name] for at, c in enumerate(columns) if c.name in rules}, {}, None)
            )
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
        ruled = [column.rule if column.policy else None for column in hidden.columns]
        return hidden, hidden_now(before, now, found.numbers, ruled)

    def _rules_in_tree(
        self, shape: TableShape, above: Sequence[str], pins: Mapping[str, Pin], others: Mapping[int, bool]
    ) -> dict[str, str]:
        """Return the columns that pinned tables of this table's partition tree hide, by present
        name, with the names whose rules apply to this table; by "" one that is dropped.

        A column has one name in the whole tree. The rule of a table below, or beside, is not for
        this table, unless it came from above. `others`: more tables, as `Catalog.tree` has them.
        """
        if not any(pin.hidden for pin in pins.values()):
            return {}
        tree = {**self._catalog.tree(shape.oid), **others}
        tables, names = (f"{shape.schema}.{shape.table}", *above), dict[tuple[int, int], list[str]]()
        for oid, pin in ((pin.oid, pin) for pin in pins.values() if pin.hidden):
            if oid is None or oid not in tree:
                continue
            for each in HiddenColumns.from_text(pin.hidden).columns:
                table, _, column = each.rule.rpartition(".")
                is_for_all = tree[oid] or table != f"{pin.schema}.{pin.table}"
                found = names.setdefault((oid, each.number), [])
                found += [*(f"{table}.{column}" for table in tables), *([each.rule] if is_for_all else ())]
        present = self._catalog.column_names(names)
        return {present.get(key, ""): rule for key in names if (rule := self._policy.first_ruled(names[key]))}

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


def _hidden_before(
    oid: int, pin: Pin | None, former: Sequence[tuple[str, Pin]], met: Mapping[int, HiddenColumns]
) -> HiddenColumns:
    """Return the known hidden columns of the table, also of its former names.

    A load may have met the table under its later name: the rules of that name say nothing of rows
    under the pinned one.
    """
    if pin is not None and pin.oid == oid:
        return HiddenColumns.from_text(pin.hidden)
    return HiddenColumns.from_text(former[0][1].hidden) if former else met.get(oid, HiddenColumns())


def _hidden_as_in_tree(before: HiddenColumns, rules: Mapping[str, str], now: CatalogTable | None) -> HiddenColumns:
    """Add the table's columns that its partition tree hides under these names.

    Of a dropped one nobody knows which it was in a table that hid nothing, and the stream may be
    behind that.
    """
    if now is None:
        return before
    known = {each.number for each in before.columns}
    own = [each for each in now.columns if each.number not in known]
    hidden = [*before.columns, *(Hidden(each.number, rules[each.name], each.row) for each in own if each.name in rules)]
    if before.columns:
        return HiddenColumns(tuple(hidden), before.names, before.rows)
    hidden += [Hidden(number, rules[""], 0) for number in sorted(now.dropped) if "" in rules]
    return HiddenColumns(tuple(hidden), tuple(each.name for each in now.columns))


def _former_roots(oid: int, pins: Mapping[str, Pin]) -> list[Pin]:
    """Return the pins of the tables of which this table was a partition at the last look."""
    return [pin for pin in pins.values() if pin.stored and f"[{oid}," in pin.stored and _has_partition(pin.stored, oid)]


def _has_partition(stored: str, oid: int) -> bool:
    described = Description.from_text(stored)
    return described is not None and any(partition == oid for partition, *_ in described.partitions)
