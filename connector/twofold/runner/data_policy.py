"""The data policy: what replaces a column's values before anything is written.

Pure. A table's shape gets the policy of its columns when the catalog has resolved it. Schemas, row
plans and COPY's queries all follow from the shape, so nothing behind it sees the values.
"""

from __future__ import annotations

import glob
from dataclasses import replace
from typing import Any

from twofold.config import ColumnRule, Config
from twofold.errors import Refused
from twofold_avro.schemas import column_names, policy_of
from twofold_avro.shapes import ColumnShape, PolicyAction, TableShape, TypeShape
from twofold_common.printable import toml_string

_TEXT = TypeShape(25, "pg_catalog", "text")
_REDACTED_TYPES = frozenset({"text", "varchar", "bpchar", "name", "citext"})


class DataPolicy:
    """The rules of one configuration."""

    def __init__(self, config: Config) -> None:
        self._rules = config.policy.columns
        self._loads = config.source.backfill

    def apply(self, shape: TableShape) -> TableShape:
        """Return the shape with the policy of its columns; refuse a rule that cannot hold."""
        if not self._rules:
            return shape
        return replace(shape, columns=tuple(self._of(shape, column) for column in shape.columns))

    def require_rules(self, shape: TableShape, before: Any, former: str | None = None) -> None:
        """Refuse what would show values that were hidden so far and that no rule speaks of now.

        Rules go by names. So a hidden column needs one as long as it is there, also if its table
        has had the `former` name. Where a hidden column is gone, a new one needs a rule: a renamed
        column looks so.

        `before`: the envelope of the rows so far.
        """
        hidden, table = policy_of(before), f"{shape.schema}.{shape.table}"
        ruleless = {c.name for c in shape.columns if self._rule_of(shape, c.name) is None}
        gone = sorted(hidden.keys() - {c.name for c in shape.columns})
        shown = sorted(ruleless & hidden.keys())
        new = sorted(ruleless - column_names(before) - hidden.keys()) if gone else []
        if not shown and not new:
            return
        if former is not None:
            what = f"{table} was {former}, of which the data policy hides {', '.join(sorted(hidden))}, and it has no rule for {', '.join([*shown, *new])} of {table}"
        elif shown:
            what = f"the data policy has hidden {', '.join(shown)} of {table} so far, and has no rule for it any more"
        else:
            what = f"{table} has lost {', '.join(gone)}, which the data policy hides, and got {', '.join(new)}, for which it has no rule"
        lines = [_line(f"{table}.{c}", hidden.get(c, "hash")) for c in (*shown, *new)]
        raise Refused(
            what,
            at_stake="values that were hidden would be readable in the topic; nothing of them was written",
            repair=f'put {", ".join(lines)} into policy.columns, or the action "keep" for what need not be hidden',
        )

    def _rule_of(self, shape: TableShape, column: str) -> ColumnRule | None:
        name = f"{shape.schema}.{shape.table}.{column}"
        return next((rule for rule in self._rules if rule.matches(name)), None)

    def _of(self, shape: TableShape, column: ColumnShape) -> ColumnShape:
        name = f"{shape.schema}.{shape.table}.{column.name}"
        rule = self._rule_of(shape, column.name)
        if rule is None or rule.action == "keep":
            return column
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
        return replace(column, policy=action, type=_TEXT if action == "hash" else column.type)


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
