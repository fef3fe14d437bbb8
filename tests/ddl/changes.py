"""What a seed does: transactions of DDL and rows over its own tables. Each change of a definition
is undone by its last statement, so that the next one finds the table as it was made.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

ROWS = 12
"""The ids of rows are below this."""
TABLES = {
    "plain": "CREATE TABLE {t} (id int PRIMARY KEY, v int, note text)",
    "short": "CREATE TABLE {t} (id int PRIMARY KEY, v int)",
    "index": "CREATE TABLE {t} (id int NOT NULL, v int, note text); CREATE UNIQUE INDEX {n}_id ON {t} (id); ALTER TABLE {t} REPLICA IDENTITY FULL",
    "whole": "CREATE TABLE {t} (id int PRIMARY KEY, v int, note text); ALTER TABLE {t} REPLICA IDENTITY FULL",
    "word": 'CREATE TABLE {t} (id text COLLATE "C" PRIMARY KEY, v int, note text)',
    "twin": "CREATE TABLE {t} (id int PRIMARY KEY, v int, note text)",
    "root": "CREATE TABLE {s}.parent (id int PRIMARY KEY, v int, note text) PARTITION BY RANGE (id); CREATE TABLE {t} PARTITION OF {s}.parent FOR VALUES FROM (0) TO (100)",
}  # fmt: skip
PUBLISHED = {name: name for name in TABLES if name != "root"} | {"root": "parent"}
"""The tables that a publication names for these."""
RENAME = "ALTER TABLE {t} RENAME TO {n}_x", "@{s}.{n}_x", "ALTER TABLE {s}.{n}_x RENAME TO {n}"
CHANGES: dict[str, tuple[str, ...]] = {
    "renamed": RENAME,
    "moved": ("ALTER TABLE {t} SET SCHEMA {s}_other", "@{s}_other.{n}", "ALTER TABLE {s}_other.{n} SET SCHEMA {s}"),
    "schema renamed": ("ALTER SCHEMA {s} RENAME TO {s}_x", "@{s}_x.{n}", "ALTER SCHEMA {s}_x RENAME TO {s}"),
    "rewritten": ("ALTER TABLE {t} ALTER v TYPE int USING v + 100",),
    "column replaced": ("ALTER TABLE {t} DROP v", "ALTER TABLE {t} ADD v int"),
    "column with a default": ("ALTER TABLE {t} ADD more int DEFAULT 7", "@{t}", "ALTER TABLE {t} DROP more"),
    "column renamed": ("ALTER TABLE {t} RENAME v TO w", "INSERT INTO {t} (id, w) VALUES (11, {k}) ON CONFLICT DO NOTHING", "UPDATE {t} SET w = {k}", "ALTER TABLE {t} RENAME w TO v"),
    "columns swapped": ("ALTER TABLE {t} ADD w int", "ALTER TABLE {t} RENAME v TO z", "ALTER TABLE {t} RENAME w TO v", "@{t}", "ALTER TABLE {t} DROP z"),
    "filter": ("ALTER PUBLICATION {p} DROP TABLE {t}", "@{t}", "ALTER PUBLICATION {p} ADD TABLE {t} WHERE (id < {j})", "@{t}", "ALTER PUBLICATION {p} DROP TABLE {t}", "@{t}", "ALTER PUBLICATION {p} ADD TABLE {t}"),
    "list": ("ALTER PUBLICATION {p} DROP TABLE {t}", "ALTER PUBLICATION {p} ADD TABLE {t} (id, v)", "@{t}", "ALTER PUBLICATION {p} DROP TABLE {t}", "ALTER PUBLICATION {p} ADD TABLE {t}"),
    "by schema": ("ALTER PUBLICATION {p} DROP TABLE {t}", "ALTER PUBLICATION {p} ADD TABLES IN SCHEMA {s}", "@{t}", "ALTER PUBLICATION {p} DROP TABLES IN SCHEMA {s}", "@{t}", "ALTER PUBLICATION {p} ADD TABLE {t}"),
    "unlogged": ("ALTER PUBLICATION {p} DROP TABLE {t}", "ALTER PUBLICATION {p} ADD TABLES IN SCHEMA {s}", "ALTER TABLE {t} SET UNLOGGED", "@{t}", "ALTER TABLE {t} SET LOGGED", "@{t}", "ALTER PUBLICATION {p} DROP TABLES IN SCHEMA {s}", "ALTER PUBLICATION {p} ADD TABLE {t}"),
}  # fmt: skip
OWN: dict[str, dict[str, tuple[str, ...]]] = {
    "plain": {
        "full and back": ("ALTER TABLE {t} REPLICA IDENTITY FULL", "@{t}", "ALTER TABLE {t} REPLICA IDENTITY DEFAULT"),
        "swapped": (
            "ALTER TABLE {t} RENAME TO {n}_x", "ALTER TABLE {s}.twin RENAME TO {n}", "@{t}", "@{s}.{n}_x",
            "ALTER TABLE {t} RENAME TO twin", "ALTER TABLE {s}.{n}_x RENAME TO {n}",
        ),
    },
    "index": {
        "index made again": ("DROP INDEX {s}.{n}_id", "INSERT INTO {t} VALUES ({i}, 1000 + {k})", "DELETE FROM {t} WHERE id = {i} AND v IS DISTINCT FROM 1000 + {k}", "CREATE UNIQUE INDEX {n}_id ON {t} (id)"),
    },
    "whole": {
        "key made again": ("ALTER TABLE {t} DROP CONSTRAINT {n}_pkey", "INSERT INTO {t} VALUES ({i}, 1000 + {k})", "DELETE FROM {t} WHERE id = {i} AND v IS DISTINCT FROM 1000 + {k}", "ALTER TABLE {t} ADD PRIMARY KEY (id)"),
    },
    "word": {
        "order of the key": ('ALTER TABLE {t} ALTER id TYPE text COLLATE "und-x-icu"', "@{t}", 'ALTER TABLE {t} ALTER id TYPE text COLLATE "C"'),
    },
    "root": {
        "detached": ("ALTER TABLE {s}.parent DETACH PARTITION {t}", "@{t}", "ALTER TABLE {s}.parent ATTACH PARTITION {t} FOR VALUES FROM (0) TO (100)"),
    },
}  # fmt: skip
TOLD = {(table, "column renamed") for table in TABLES} | {("short", "unlogged")}
"""What event triggers alone notice, by table and change (docs/use/evolution.md)."""
REPAIRED = (
    "ALTER SCHEMA {s}_x RENAME TO {s}",
    *(
        f"DROP TABLE IF EXISTS {each} CASCADE"
        for each in ("{t}", "{s}.{n}_x", "{s}_other.{n}", "{s}.twin", "{s}.parent")
    ),
    "ALTER PUBLICATION {p} DROP TABLES IN SCHEMA {s}",
)
"""What makes room for tables that are made again, where a change failed halfway. Each may fail."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """Statements, and how they are carried out."""

    table: str
    what: str
    statements: tuple[str, ...]
    prepared: bool
    rolled_back: bool
    savepoint: int
    """Before this statement a savepoint is made, and the one behind it is done twice: first rolled
    back. Beyond the last: none."""
    closes: bool
    """It undoes its change."""


class Seed:
    """The transactions of one seed, always the same ones."""

    def __init__(self, number: int, publication: str, *, told: bool) -> None:
        """`told`: also what event triggers alone notice."""
        self.number = number
        self._told = told
        self._publication = publication
        self._random = random.Random(number)
        self.schema = f"s{number}"

    def names(self, table: str) -> dict[str, str]:
        return {"t": f"{self.schema}.{table}", "n": table, "s": self.schema, "p": self._publication}

    def made(self) -> Iterator[str]:
        yield f"CREATE SCHEMA {self.schema}"
        yield f"CREATE SCHEMA {self.schema}_other"
        for table, made in TABLES.items():
            yield made.format(**self.names(table))
            yield f"INSERT INTO {self.schema}.{table} SELECT n, n FROM generate_series(1, 4) n"

    def repairs(self, table: str) -> Iterator[str]:
        """Yield what makes the table again, whatever it is now; each statement may fail."""
        for each in REPAIRED:
            yield each.format(**self.names(table))
        for made in dict.fromkeys((table, "twin", "root")):
            names = self.names(made)
            yield TABLES[made].format(**names)
            yield f"ALTER PUBLICATION {self._publication} ADD TABLE {self.schema}.{PUBLISHED[made]}"

    def transactions(self) -> Iterator[Transaction]:
        """Yield them without an end."""
        while True:
            table = self._random.choice([*TABLES])
            changes = OWN.get(table, {}) | ({} if table == "root" else CHANGES)
            if not self._told:
                changes = {what: each for what, each in changes.items() if (table, what) not in TOLD}
            if self._random.random() < 0.3:
                yield from self._cut(table, "rows", ["@{t}"] * self._random.randint(1, 4))
            else:
                what = self._random.choice([*changes])
                yield from self._cut(table, what, [*changes[what]])

    def _cut(self, table: str, what: str, statements: list[str]) -> Iterator[Transaction]:
        """Cut a change into transactions at random, most often into one."""
        cuts = sorted(
            self._random.sample(range(1, len(statements)), self._random.choice([0, 0, 1, 2]) % len(statements))
        )
        for first, behind in zip([0, *cuts], [*cuts, len(statements)], strict=True):
            values = {
                "i": self._random.randint(1, 4),
                "j": self._random.randint(2, 6),
                "k": self._random.randint(0, 999),
            }
            made = tuple(self._statement(each, table, values) for each in statements[first:behind])
            yield Transaction(
                table, what, made,
                prepared=self._random.random() < 0.3,
                rolled_back=self._random.random() < 0.1 and len(cuts) == 0,
                savepoint=self._random.randint(0, 3 * len(made)),
                closes=behind == len(statements),
            )  # fmt: skip

    def _statement(self, template: str, table: str, values: dict[str, int]) -> str:
        text = template.format(**self.names(table), **values)
        return self._row(text[1:]) if text.startswith("@") else text

    def _row(self, table: str) -> str:
        """Change some rows; whatever columns there are, these three always are."""
        number, value = self._random.randrange(ROWS), self._random.randrange(10_000)
        return self._random.choice(
            [
                f"INSERT INTO {table} (id) SELECT {number} WHERE NOT EXISTS (SELECT FROM {table} WHERE id = '{number}')",
                f"INSERT INTO {table} (id) SELECT n FROM generate_series(5, 9) n WHERE NOT EXISTS (SELECT FROM {table} o WHERE o.id::text = n::text)",
                f"UPDATE {table} SET v = {value} WHERE id::text > '{number}'",
                f"UPDATE {table} SET v = {value} WHERE id = '{number}'",
                f"DELETE FROM {table} WHERE id = '{number}'",
            ]
        )
