"""The data policy: what replaces a column's values before anything is written.

Pure. A table's shape gets the policy of its columns when the catalog has resolved it. Schemas, row
plans and COPY's queries all follow from the shape, so nothing behind it sees the values.
"""

from __future__ import annotations

import glob
import hmac
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

from twofold.config import ColumnRule, Config
from twofold.descriptions.hidden_columns import NOTHING_HIDDEN, Located
from twofold.errors import Refused
from twofold_avro.schemas import column_names, policy_of
from twofold_avro.shapes import ColumnShape, PolicyAction, TableShape, TypeShape
from twofold_common.printable import toml_string

_TEXT = TypeShape(25, "pg_catalog", "text")
_DIGITS = 16
_REDACTED_TYPES = frozenset({"text", "varchar", "bpchar", "name", "citext"})


class DataPolicy:
    """The rules of one configuration."""

    def __init__(self, config: Config) -> None:
        self._rules = config.policy.columns
        self._loads = config.source.backfill
        self._config = config.policy

    @property
    def rules(self) -> tuple[ColumnRule, ...]:
        return self._rules

    def apply(
        self, shape: TableShape, hidden: Located = NOTHING_HIDDEN, names: Sequence[str] = (), *, anywhere: bool = False
    ) -> TableShape:
        """Return the shape with the policy of its columns; refuse a rule that cannot be kept.

        `hidden`: the columns that were hidden before. `names`: the tables whose rules apply to this
        table too. `anywhere`: rules apply to their columns in each table.
        """
        if not self._rules:
            return shape
        tables = f"{shape.schema}.{shape.table}", *names
        columns, shown = [], []
        for place, column in enumerate(shape.columns):
            found = self._find(column.name, tables, anywhere=anywhere)
            if (bound := hidden.certain.get(place)) is not None and (first := self._first(bound)) is not None:
                kept = first.action == "keep"
                columns.append(self._of(shape, column, *(found if kept and found else (first, bound))))
            elif bound is not None and found is None:
                shown.append(column.name)
            elif found is None and (bound := hidden.possible.get(place)) is not None and not column.in_key:
                columns.append(replace(column, policy="drop", rule=bound))
            elif found is not None:
                columns.append(self._of(shape, column, *found))
            else:
                columns.append(replace(column, rule="" if hidden.are_others_shown else None))
        if shown:
            raise self._shown(shape, shown)
        return replace(shape, columns=tuple(columns))

    def _shown(self, shape: TableShape, shown: list[str]) -> Refused:
        table = f"{shape.schema}.{shape.table}"
        what = f"the data policy has hidden {', '.join(shown)} of {table} so far, and has no rule for it any more"
        return _would_show(what, [_line(f"{table}.{c}", "hash") for c in shown])

    def require_rules(self, shape: TableShape, before: Any, former: str | None = None) -> None:
        """Refuse a shape that would show values that were hidden so far and have no rule now. A
        hidden column needs a rule as long as it exists, also if its table has had the `former`
        name. If a hidden column is gone and its number is not known, a new column needs a rule,
        because it may be the renamed one.

        `before`: the envelope of the rows so far.
        """
        hidden, table = policy_of(before), f"{shape.schema}.{shape.table}"
        ruleless = {c.name for c in shape.columns if not c.rule and self._find(c.name, [table]) is None}
        gone = sorted(hidden.keys() - {c.name for c in shape.columns})
        shown = sorted(hidden.keys() & {c.name for c in shape.columns if c.name in ruleless and c.rule is None})
        new = sorted(ruleless - column_names(before) - hidden.keys()) if gone else []
        if not shown and not new:
            return
        if former is not None:
            what = f"{table} was {former}, of which the data policy hides {', '.join(sorted(hidden))}, and it has no rule for {', '.join([*shown, *new])} of {table}"
        elif shown:
            what = f"the data policy has hidden {', '.join(shown)} of {table} so far, and has no rule for it any more"
        else:
            what = f"{table} has lost {', '.join(gone)}, which the data policy hides, and got {', '.join(new)}, for which it has no rule"
        raise _would_show(what, [_line(f"{table}.{c}", hidden.get(c, "hash")) for c in (*shown, *new)])

    def first_ruled(self, names: Iterable[str]) -> str | None:
        """Return the first of these columns' full names that has a rule."""
        return next((name for name in names if self._first(name)), None)

    def _first(self, name: str) -> ColumnRule | None:
        return next((rule for rule in self._rules if rule.matches(name)), None)

    def _find(self, column: str, tables: Iterable[str], *, anywhere: bool = False) -> tuple[ColumnRule, str] | None:
        """Return the first rule that matches the column in these tables, and the matched name."""
        for name in (f"{table}.{column}" for table in tables):
            if rule := self._first(name):
                return rule, name
        alike = (
            r
            for r in self._rules
            if anywhere and r.action != "keep" and fnmatchcase(column, r.column.rpartition(".")[2])
        )
        return next(((rule, rule.column) for rule in alike), None)

    def _of(self, shape: TableShape, column: ColumnShape, rule: ColumnRule, matched: str) -> ColumnShape:
        name = f"{shape.schema}.{shape.table}.{column.name}"
        if rule.action == "keep":
            return replace(column, rule=matched)
        action: PolicyAction = rule.action
        if column.in_key and action != "hash":
            raise _refused(
                rule, f"{name} is in the message key, which can only be hashed", 'set action = "hash" for this column'
            )
        if column.in_key and self._loads:
            raise _refused(
                rule,
                f"{name} is in the message key, and rows cannot be loaded in the order of a hash",
                "set source.backfill = false, and load such tables in another way",
            )
        if action == "redact" and not _is_text(column.type):
            raise _refused(
                rule,
                f"{name} is of type {column.type.name}, which has no text to redact",
                'set action = "null" or "hash"',
            )
        if action != "hash":
            return replace(column, policy=action, rule=matched)
        hashed_with = self._hashed_with if column.in_key else None
        return replace(column, policy=action, rule=matched, type=_TEXT, hashed_with=hashed_with)

    @cached_property
    def _hashed_with(self) -> str:
        return hmac.new(self._config.hash_key, b"twofold", "sha256").hexdigest()[:_DIGITS]


def _would_show(what: str, lines: list[str]) -> Refused:
    return Refused(
        what,
        at_stake="values that were hidden would be readable in the topic; nothing of them was written",
        repair=f'put {", ".join(lines)} into policy.columns, or the action "keep" for what need not be hidden',
    )


def _line(column: str, action: str) -> str:
    """Return a rule in TOML that matches this column alone."""
    return f'{{ column = {toml_string(glob.escape(column))}, action = "{action}" }}'


def _is_text(shape: TypeShape) -> bool:
    if shape.kind == "domain" and shape.element is not None:
        return _is_text(shape.element)
    return shape.kind == "base" and shape.name in _REDACTED_TYPES


def _refused(rule: ColumnRule, what: str, repair: str) -> Refused:
    return Refused(
        f"the policy of {rule.column} ({rule.action}) cannot hold: {what}",
        at_stake="the column would be readable in the topic; nothing was written",
        repair=f"{repair}, or put a rule for it before this one",
    )
