"""A group's mirror in PostgreSQL, read as docs/use/spark.md describes it: plain SQL in a REPEATABLE
READ transaction, which is at a global cut whatever it reads.
"""

from __future__ import annotations

from typing import Any, Final

import psycopg
from psycopg.sql import SQL, Composed, Identifier

from chaos.group.shown import COLUMNS, GlobalCut, Rows, Shown

_CUTS: Final = """
SELECT number, json_object_agg(prefix, json_build_object('sequence', sequence, 'backfilling', backfilling)),
       max(extract(epoch FROM published_at))::float
  FROM twofold.cuts WHERE joined GROUP BY number ORDER BY number
"""


class Snapshots:
    """There are no older tables: each global cut is read while it is the last."""

    look_every_s = 0.05

    def __init__(self, conninfo: str, prefixes: list[str]) -> None:
        self._prefixes = prefixes
        self._connection = psycopg.connect(conninfo, autocommit=True)
        self._connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        self._looked_at = 0

    def look(self) -> Shown | None:
        with self._connection.transaction():
            cut = self._last()
            if cut is None or cut.number == self._looked_at:
                return None
            if not cut.complete:
                return None
            self._looked_at = cut.number
            (total,) = self._ask(SQL("SELECT sum(balance)::bigint FROM ({}) a").format(self._all("account")))[0]
            torn = self._ask(
                SQL(
                    "SELECT transfer, count(*), max(branches) FROM ({}) p GROUP BY transfer "
                    "HAVING count(*) <> max(branches) OR sum(amount) <> 0"
                ).format(self._all("part"))
            )
            return Shown(f"snapshot at {cut}", cut.number, total, tuple(torn))

    def rows_of_last(self) -> Rows:
        with self._connection.transaction():
            cut = self._last()
            if cut is None or not cut.complete:
                return {}
            return {
                table: {prefix: sorted(self._ask(self._select(prefix, table))) for prefix in self._prefixes}
                for table in COLUMNS
            }

    def cuts(self) -> list[GlobalCut]:
        if not self._exists("twofold", "cuts"):
            return []
        nothing: dict[str, Any] = {each: {"tables": (), "backfilling": ()} for each in self._prefixes}
        found = self._ask(SQL(_CUTS))
        return [GlobalCut(number, self._sequences(members), nothing, at) for number, members, at in found]

    def show(self, cut: GlobalCut) -> Shown | None:
        return None

    def close(self) -> None:
        self._connection.close()

    def _last(self) -> GlobalCut | None:
        if not self._exists("twofold", "cuts"):
            return None
        found = self._ask(SQL(_CUTS + " DESC LIMIT 1"))
        if not found:
            return None
        number, members, at = found[0]
        sequences = self._sequences(members)
        parts = {prefix: self._part(prefix, members.get(prefix)) for prefix in sequences}
        return GlobalCut(number, sequences, parts, at)

    def _part(self, prefix: str, member: dict[str, Any] | None) -> dict[str, Any] | None:
        if member is None or not member["sequence"]:
            return None
        tables = [{"name": f"public.{table}"} for table in COLUMNS if self._exists(f"{prefix}_public", table)]
        return {"tables": tables, "backfilling": member["backfilling"]}

    def _all(self, table: str) -> Composed:
        return SQL(" UNION ALL ").join(self._select(prefix, table) for prefix in self._prefixes)

    @staticmethod
    def _select(prefix: str, table: str) -> Composed:
        columns = SQL(", ").join(map(Identifier, COLUMNS[table]))
        return SQL("SELECT {} FROM {}").format(columns, Identifier(f"{prefix}_public", table))

    def _exists(self, schema: str, table: str) -> bool:
        listed = SQL("SELECT FROM pg_tables WHERE schemaname = {} AND tablename = {}")
        return bool(self._ask(listed.format(schema, table)))

    def _ask(self, query: SQL | Composed) -> list[Any]:
        return self._connection.execute(query).fetchall()

    def _sequences(self, members: dict[str, dict[str, Any]]) -> dict[str, int]:
        return dict.fromkeys(self._prefixes, 0) | {prefix: each["sequence"] for prefix, each in members.items()}
