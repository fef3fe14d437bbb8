"""The tables of the trial: one with a column of every type, and one for each kind of change; each
under both replica identities.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from clients.samples import SAMPLES, Sample

IDENTITIES: Final = ("default", "full")
_TEXT: Final = (Sample("text", "text", ("'a'", "'b'")),)
LAST_ID: Final = 999
"""Of the row that each table gets at the end of all."""
_LARGE: Final = "repeat('x', 10000)"


@dataclass(frozen=True, slots=True)
class Table:
    """A table, and what happens to it. `{t}` in a statement is its name."""

    name: str
    identity: str
    samples: tuple[Sample, ...]
    changes: tuple[str, ...]
    before: tuple[str, ...] = ()
    """Before the connector is there: rows that are loaded."""
    reloaded: bool = False
    """`twofold backfill start` comes behind the changes."""
    keyless: bool = False
    storage: str = ""

    @property
    def table(self) -> str:
        return f"{self.name}_{self.identity}"

    def creation(self) -> tuple[str, ...]:
        columns = ", ".join(f"{sample.column} {sample.type}" for sample in self.samples)
        key = "" if self.keyless else " PRIMARY KEY"
        made = [f"CREATE TABLE {{t}} (id int{key}, n int, {columns})"]
        if self.storage:
            made.append(f"ALTER TABLE {{t}} ALTER {self.samples[0].column} SET STORAGE {self.storage}")
        if self.identity == "full":
            made.append("ALTER TABLE {t} REPLICA IDENTITY FULL")
        return self.statements(*made, *self.before)

    def statements(self, *chosen: str) -> tuple[str, ...]:
        return tuple(statement.replace("{t}", self.table) for statement in chosen)


def every_type(identity: str) -> Table:
    """All types at once: a row for each number of value, and rows that are updated to and from
    null, deleted and moved.
    """

    def row(key: int, number: int | None) -> str:
        values = ("NULL" if number is None else sample.value(number) for sample in SAMPLES)
        return f"INSERT INTO {{t}} VALUES ({key}, 0, {', '.join(values)})"

    def setting(number: int | None) -> str:
        values = ("NULL" if number is None else sample.value(number) for sample in SAMPLES)
        return ", ".join(f"{sample.column} = {value}" for sample, value in zip(SAMPLES, values, strict=True))

    changes = (
        *(row(number + 1, number) for number in range(max(len(sample.values) for sample in SAMPLES))),
        *(row(100, None), row(101, 0), row(102, 1), row(103, 0)),
        "UPDATE {t} SET n = 1 WHERE id = 1",
        f"UPDATE {{t}} SET {setting(1)} WHERE id = 100",
        f"UPDATE {{t}} SET {setting(None)} WHERE id = 101",
        "DELETE FROM {t} WHERE id = 102",
        "UPDATE {t} SET id = 104 WHERE id = 103",
    )
    return Table("every", identity, SAMPLES, changes)


def kinds_of_change(identity: str) -> tuple[Table, ...]:
    """A table for each: a reader that cannot do one shows it there, and nothing else."""
    two = ("INSERT INTO {t} VALUES (1, 0, 'a'), (2, 0, NULL)",)
    some: dict[str, tuple[str, ...]] = {
        "insert": two,
        "update": (*two, "UPDATE {t} SET n = 1, v_text = 'b'"),
        "delete": (*two, "DELETE FROM {t} WHERE id = 1"),
        "key": (*two, "UPDATE {t} SET id = 3 WHERE id = 1"),
        "truncate": (*two, "TRUNCATE {t}", "INSERT INTO {t} VALUES (3, 0, 'c')"),
    }
    large = (f"INSERT INTO {{t}} VALUES (1, 0, {_LARGE})", "UPDATE {t} SET n = 1")
    keyless = (*two, "DELETE FROM {t} WHERE id = 1") if identity == "full" else two
    return (
        *(Table(f"on_{name}", identity, _TEXT, changes) for name, changes in some.items()),
        Table("on_large", identity, _TEXT, large, storage="EXTERNAL"),
        Table("on_load", identity, _TEXT, ("INSERT INTO {t} VALUES (3, 0, 'c')",), before=two),
        Table("on_reload", identity, _TEXT, two, reloaded=True),
        Table("on_keyless", identity, _TEXT, keyless, keyless=True),
    )


WORDS: Final = {
    "insert": "INSERT, null",
    "update": "UPDATE",
    "delete": "DELETE",
    "key": "UPDATE of the key",
    "truncate": "TRUNCATE",
    "large": "UPDATE that leaves a large value alone",
    "load": "rows that were there before",
    "reload": "`twofold backfill start`",
    "keyless": "table without a key: INSERT, with FULL DELETE",
}
