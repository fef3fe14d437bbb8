"""Random work for a server, and the server's own account of it, to compare a decoded stream with.

The account is kept by triggers in a table that is not published: one line a change, with the
transaction's xid and the rows in text form. It is written by the transaction itself, so a rolled
back savepoint or transaction takes its lines with it: what is left is exactly what must be decoded.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

import psycopg
from psycopg import sql

from integration.source.stream import Writer
from twofold.source.connection import connect

TYPES: dict[str, Callable[[random.Random], str | None]] = {
    "int": lambda r: str(r.randint(-(2**31), 2**31 - 1)),
    "bigint": lambda r: str(r.randint(-(2**63), 2**63 - 1)),
    "text": lambda r: "".join(r.choices("abc ,(){}\"'\\ß€𝄞\n\t", k=r.randint(0, 12))),
    "numeric": lambda r: r.choice(["NaN", "0", "-0.000", f"{r.random() * 10 ** r.randint(-20, 20):f}"]),
    "numeric(12,3)": lambda r: f"{r.uniform(-1e8, 1e8):.3f}",
    "float8": lambda r: r.choice(["NaN", "Infinity", "-0", repr(r.uniform(-1e300, 1e300))]),
    "boolean": lambda r: r.choice("tf"),
    "bytea": lambda r: "\\x" + r.randbytes(r.randint(0, 8)).hex(),
    "date": lambda r: r.choice(["infinity", "0044-03-15 BC", f"{r.randint(1, 9999):04}-01-{r.randint(1, 31):02}"]),
    "timestamptz": lambda r: r.choice(
        ["-infinity", f"2026-0{r.randint(1, 9)}-03 04:05:06.{r.randint(0, 999999):06}+05:30"]
    ),
    "interval": lambda r: f"{r.randint(-99, 99)} mons {r.randint(-99, 99)} days {r.randint(-99, 99)}:12:13.5",
    "uuid": lambda r: f"{r.getrandbits(128):032x}",
    "jsonb": lambda r: r.choice(['{"a": [1, "\\"x\\""]}', "null", "[]", '"é"']),
    "int[]": lambda r: r.choice(["{}", "{1,NULL,3}", "{{1,2},{3,4}}", "[0:1]={5,6}"]),
    "text[]": lambda r: r.choice(["{}", '{"a,b",NULL,"NULL","\\"q\\""}']),
    "int4range": lambda r: r.choice(["empty", "[1,5)", "(,7)", "[3,)"]),
    "varbit": lambda r: "".join(r.choices("01", k=r.randint(0, 11))),
    "inet": lambda r: r.choice(["10.0.0.1/8", "::1", "192.168.0.1"]),
    "point": lambda r: f"({r.uniform(-9, 9)},{r.uniform(-9, 9)})",
    "mood": lambda r: r.choice(["sad", "ok", "so, so"]),
    "positive": lambda r: str(r.randint(1, 99)),
    "pair": lambda r: r.choice(['(1,"a b")', "(,)", '(7,"""")']),
    "fat": lambda r: r.randbytes(2).hex() * r.choice([1, 3000]),
}
"""Text values that the type takes. `fat` is a text that is stored out of line when it is long."""

PRELUDE = """
CREATE TYPE mood AS ENUM ('sad', 'ok', 'so, so');
CREATE DOMAIN positive AS numeric(6,2) CHECK (VALUE > 0);
CREATE TYPE pair AS (a int, b text);
CREATE DOMAIN fat AS text;
CREATE TABLE account (seq bigserial, xid bigint, what text, relation text, old text, new text);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO account (xid, what, relation, old, new)
  VALUES (pg_current_xact_id()::text::bigint, TG_OP, TG_TABLE_NAME,
          CASE WHEN TG_LEVEL = 'ROW' AND TG_OP <> 'INSERT' THEN OLD::text END,
          CASE WHEN TG_LEVEL = 'ROW' AND TG_OP <> 'DELETE' THEN NEW::text END);
  RETURN NULL;
END $$;
"""

KEYS = ("PRIMARY KEY (k)", "PRIMARY KEY (k, k2)", "index", "full", "full keyless", "nothing")


@dataclass
class Table:
    name: str
    kind: str
    columns: dict[str, str]

    @property
    def may_update(self) -> bool:
        return self.kind != "nothing"


@dataclass
class Work:
    """Several sessions that do random things to random tables; `finish` ends all that is open."""

    conninfo: str
    seed: int
    other_database: str
    random: random.Random = field(init=False)
    tables: list[Table] = field(default_factory=list)
    prepared: list[str] = field(default_factory=list)
    rewriting: set[str] = field(default_factory=set)
    rewriting_pids: set[int] = field(default_factory=set)
    outside: list[str] = field(default_factory=list)
    """Messages outside of transactions: whatever becomes of the one that wrote them."""
    added: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def set_up(self) -> None:
        with connect(self.conninfo) as connection:
            connection.execute("SET search_path = public")
            connection.execute(PRELUDE)
            for number, kind in enumerate(KEYS):
                chosen = self.random.sample(list(TYPES), self.random.randint(1, 8))
                table = Table(f"t{number}", kind, {f"c{i}": name for i, name in enumerate(chosen)} | {"toast": "fat"})
                self._create(connection, table)
                self.tables.append(table)

    def _create(self, connection: Writer, table: Table) -> None:
        columns = ", ".join(f"{name} {type_}" for name, type_ in table.columns.items())
        key = f", {table.kind}" if table.kind.startswith("PRIMARY") else ""
        connection.execute(f"CREATE TABLE {table.name} (k int NOT NULL, k2 text NOT NULL DEFAULT 'x', {columns}{key})")
        connection.execute(f"ALTER TABLE {table.name} ALTER toast SET STORAGE EXTERNAL")
        if table.kind in {"index", "full"}:
            connection.execute(f"CREATE UNIQUE INDEX {table.name}_i ON {table.name} (k2, k)")
        if table.kind == "index":
            connection.execute(f"ALTER TABLE {table.name} REPLICA IDENTITY USING INDEX {table.name}_i")
        elif table.kind.startswith("full"):
            connection.execute(f"ALTER TABLE {table.name} REPLICA IDENTITY FULL")
        elif table.kind == "nothing":
            connection.execute(f"ALTER TABLE {table.name} REPLICA IDENTITY NOTHING")
        for name, event, level in (("r", "INSERT OR UPDATE OR DELETE", "ROW"), ("s", "TRUNCATE", "STATEMENT")):
            connection.execute(
                f"CREATE TRIGGER {name} AFTER {event} ON {table.name} FOR EACH {level} EXECUTE FUNCTION public.note()"
            )

    def run(self, transactions: int) -> None:
        """Sessions side by side; whoever would wait for another gives up and rolls back what it had
        begun.
        """
        with ExitStack() as ending:
            sessions = [ending.enter_context(closing(connect(self.conninfo))) for _ in range(3)]
            elsewhere = ending.enter_context(closing(connect(self.other_database)))
            for session in sessions:
                session.execute("SET search_path = public")
                session.execute("SET lock_timeout = '15ms'")
            for number in range(transactions):
                self._some_steps(self.random.choice(sessions))
                if self.prepared and self.random.random() < 0.4:
                    self._end_one(sessions[0])
                if number % 10 == 0:
                    self._elsewhere(elsewhere, number)
            for session in sessions:
                if session.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                    session.execute("COMMIT")
            while self.prepared:
                self._end_one(sessions[0])

    def _elsewhere(self, connection: Writer, number: int) -> None:
        """Another database's transactions, prepared ones too: nothing of them may come."""
        connection.execute("CREATE TABLE IF NOT EXISTS public.t0 (k int)")
        connection.execute("BEGIN")
        connection.execute("INSERT INTO public.t0 VALUES (1)")
        gid = f"elsewhere {self.seed} {number}"
        connection.execute(sql.SQL("PREPARE TRANSACTION {}").format(gid))
        connection.execute(sql.SQL("COMMIT PREPARED {}").format(gid))

    def _some_steps(self, session: Writer) -> None:
        """Go on with the session's transaction or begin one, and perhaps end it."""
        if session.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
            session.execute("BEGIN")
            self.rewriting_pids.discard(session.info.backend_pid)
        for _ in range(self.random.randint(1, 6)):
            if self.random.random() < 0.1:
                self._message(session)
                continue
            self._step(session, depth=0)
        how = self.random.random()
        if how < 0.45:
            session.execute("COMMIT")
        elif how < 0.55:
            session.execute("ROLLBACK")
        elif how < 0.85:
            gid = self._gid()
            session.execute(sql.SQL("PREPARE TRANSACTION {}").format(gid))
            self.prepared.append(gid)
            (self.rewriting.add if session.info.backend_pid in self.rewriting_pids else self.rewriting.discard)(gid)

    def _step(self, session: Writer, depth: int) -> None:
        """Within a savepoint, perhaps with others in it; who would wait gives it up."""
        session.execute(f"SAVEPOINT s{depth}")
        try:
            self._one_step(session)
            if depth < 2 and self.random.random() < 0.2:
                self._step(session, depth + 1)
        except (psycopg.errors.LockNotAvailable, psycopg.errors.IntegrityError, psycopg.errors.DeadlockDetected):
            session.execute(f"ROLLBACK TO s{depth}")
        else:
            session.execute(f"{'ROLLBACK TO' if self.random.random() < 0.15 else 'RELEASE'} s{depth}")

    def _gid(self) -> str:
        """Often one that was just used and is free again; sometimes as long and as odd as it may
        be.
        """
        for gid in ("again", "x" * 199, self._odd_gid()):
            if gid not in self.prepared and self.random.random() < 0.5:
                return gid
        return f"g {self.random.getrandbits(60):x}"

    def _odd_gid(self) -> str:
        """199 bytes of any characters, as far as they fit."""
        gid = ""
        while len(gid.encode()) < 196:
            character = chr(self.random.choice([self.random.randint(1, 0x7FF), self.random.randint(1, 0x10FFFF)]))
            gid += "" if "\ud800" <= character <= "\udfff" else character
        return gid + "." * (199 - len(gid.encode()))

    def _end_one(self, session: Writer) -> None:
        if session.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            session.execute("COMMIT")
        gid = self.prepared.pop(self.random.randrange(len(self.prepared)))
        # A prepared TRUNCATE or ALTER TABLE that is rolled back before it was decoded can break the
        # server's decoding: see docs/inside/source.md.
        outcome = "ROLLBACK" if self.random.random() < 0.35 and gid not in self.rewriting else "COMMIT"
        session.execute(sql.SQL(outcome + " PREPARED {}").format(gid))

    def _one_step(self, session: Writer) -> None:
        table = self.random.choice(self.tables)
        do = self.random.random()
        if do < 0.5 or not table.may_update:
            self._insert(session, table)
        elif do < 0.62:
            column = self.random.choice(list(table.columns))
            value = self._value(table.columns[column])
            session.execute(
                f"UPDATE {table.name} SET {column} = %s WHERE k %% 3 = %s", [value, self.random.randint(0, 2)]
            )
        elif do < 0.72:
            session.execute(f"UPDATE {table.name} SET k = k + 1000 WHERE k = %s", [self.random.randint(0, 30)])
        elif do < 0.82:
            session.execute(f"DELETE FROM {table.name} WHERE k %% 7 = %s", [self.random.randint(0, 6)])
        elif do < 0.93:
            self.rewriting_pids.add(session.info.backend_pid)
            names = ", ".join(t.name for t in self.random.sample(self.tables, 2))
            session.execute(f"TRUNCATE {names} {self.random.choice(['', 'RESTART IDENTITY', 'CASCADE'])}")
        else:
            self.rewriting_pids.add(session.info.backend_pid)
            self._alter(session, table)

    def _message(self, session: Writer) -> None:
        """Never in a savepoint: a streamed one that is rolled back cannot be told apart, see
        docs/inside/source.md.
        """
        content = self.random.randbytes(self.random.randint(0, 30))
        if self.random.random() < 0.3:
            session.execute("SELECT pg_logical_emit_message(false, 'round trip', %b::bytea)", [content])
            self.outside.append(content.hex())
            return
        session.execute("SELECT pg_logical_emit_message(true, 'round trip', %b::bytea)", [content])
        session.execute(
            "INSERT INTO account (xid, what, new) VALUES (pg_current_xact_id()::text::bigint, 'MESSAGE', %s)",
            [content.hex()],
        )

    def _alter(self, session: Writer, table: Table) -> None:
        """Each added column has a name of its own, and no default: rows that are there already are
        not sent again.
        """
        self.added += 1
        session.execute(f"ALTER TABLE {table.name} ADD COLUMN later{self.added} int")
        session.execute(f"INSERT INTO {table.name} (k, later{self.added}) VALUES ({1_000_000 + self.added}, 5)")
        if self.random.random() < 0.5:
            session.execute(f"ALTER TABLE {table.name} DROP COLUMN later{self.added}")
            session.execute(f"INSERT INTO {table.name} (k) VALUES ({2_000_000 + self.added})")

    def _insert(self, session: Writer, table: Table) -> None:
        columns = ", ".join(["k", *table.columns])
        rows = [
            [self.random.randint(0, 40), *map(self._value, table.columns.values())]
            for _ in range(self.random.choice([1, 1, 3, 20]))
        ]
        places = ", ".join(["(" + ", ".join(["%s"] * len(rows[0])) + ")"] * len(rows))
        conflict = "" if table.kind in {"full keyless", "nothing"} else " ON CONFLICT DO NOTHING"
        session.execute(
            f"INSERT INTO {table.name} ({columns}) VALUES {places}{conflict}", [v for row in rows for v in row]
        )

    def _value(self, type_: str) -> str | None:
        return None if self.random.random() < 0.1 else TYPES[type_](self.random)
