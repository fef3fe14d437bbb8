"""Runs a psql script through libpq, as `psql` without ON_ERROR_STOP does: errors are counted and
passed over.

Commands that change data or the way through the script are carried out; those that only show
something are passed over, and those that this cannot do are counted by name. Nothing that a
statement returns is compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from psycopg import conninfo, pq

from suites.script import Command, Script, Statement, arguments

SHOWS: Final = (
    *("d", "l", "z", "sf", "sv", "dt", "echo", "qecho", "warn", "pset", "x", "t", "a", "o", "timing", "f", "H", "C"),
    *("errverbose", "conninfo", "gdesc", "h", "?", "copyright", "p", "encoding", ".", "lo_list"),
)
"""Show something, and change nothing; all that begin with d are among them."""

TRUE: Final = frozenset({"true", "on", "yes", "1", "t", "y"})
_COPYING: Final = {pq.ExecStatus.COPY_IN, pq.ExecStatus.COPY_OUT, pq.ExecStatus.COPY_BOTH}
_GOOD: Final = {pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK, pq.ExecStatus.EMPTY_QUERY, *_COPYING}


@dataclass
class Counts:
    """What became of scripts."""

    statements: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    """By SQLSTATE."""
    copied: int = 0
    shown: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    """Commands that this cannot do, by name."""

    def add(self, other: Counts) -> None:
        self.statements += other.statements
        self.copied += other.copied
        self.shown += other.shown
        self.errors += other.errors
        self.skipped += other.skipped


class Psql:
    """One script with one session at a time; `\\c` begins another."""

    def __init__(self, dsn: str, text: str, environment: Mapping[str, str]) -> None:
        self.counts = Counts()
        self._dsn = dsn
        self._environment = environment
        self._script = Script(text)
        self._branches: list[str] = []
        """Of each \\if that is open: `on`, `off` (a later branch may come), or `done`."""
        self._connect({})
        known = conninfo.conninfo_to_dict(dsn)
        self._variables = {"DBNAME": str(known["dbname"]), "USER": str(known["user"])}

    def run(self) -> Counts:
        try:
            while (item := self._next()) is not None:
                if isinstance(item, Command):
                    if item.name in ("q", "quit") and self._active:
                        break
                    self._carry_out(item)
                elif self._active:
                    self._execute(item.text)
        finally:
            self._connection.finish()
        return self.counts

    def _next(self) -> Statement | Command | None:
        standard = self._connection.parameter_status(b"standard_conforming_strings") != b"off"
        return self._script.next(self._variables, standard_strings=standard)

    @property
    def _active(self) -> bool:
        return all(branch == "on" for branch in self._branches)

    def _connect(self, other: Mapping[str, str]) -> bool:
        made = pq.PGconn.connect(conninfo.make_conninfo(self._dsn, **other).encode())
        if made.status != pq.ConnStatus.OK:
            made.finish()
            return False
        if (former := getattr(self, "_connection", None)) is not None:
            former.finish()
        self._connection: pq.abc.PGconn = made
        return True

    def _execute(self, text: str) -> list[pq.abc.PGresult]:
        """Run what may be several statements in one message; the results that have rows."""
        connection = self._connection
        if connection.status != pq.ConnStatus.OK:
            self.counts.errors["no connection"] += 1
            self._connect({})
            return []
        self.counts.statements += 1
        connection.send_query(text.encode(errors="surrogateescape"))
        rows = []
        while (result := connection.get_result()) is not None:
            if result.status not in _GOOD:
                self.counts.errors[(result.error_field(pq.DiagnosticField.SQLSTATE) or b"lost").decode()] += 1
            elif result.status == pq.ExecStatus.TUPLES_OK:
                rows.append(result)
            self._copy(result.status)
            if connection.status != pq.ConnStatus.OK:
                break
        return rows

    def _copy(self, status: int) -> None:
        if status == pq.ExecStatus.COPY_IN:
            self.counts.copied += 1
            self._connection.put_copy_data(self._script.copy_data().encode(errors="surrogateescape"))
            self._connection.put_copy_end()
        elif status == pq.ExecStatus.COPY_OUT:
            while self._connection.get_copy_data(0)[0] > 0:
                pass

    def _carry_out(self, command: Command) -> None:
        name = command.name
        if name in _BRANCHES:
            _BRANCHES[name](self, command)
        elif not self._active:
            return
        elif name in _COMMANDS:
            _COMMANDS[name](self, command)
        elif name.rstrip("+S") in SHOWS or name.startswith("d"):
            self.counts.shown += 1
        else:
            self.counts.skipped[name] += 1
            self._script.drop()

    def _arguments(self, command: Command) -> list[str]:
        return arguments(command.arguments, self._variables)

    def _if(self, command: Command) -> None:
        condition = "".join(self._arguments(command)).lower() in TRUE
        self._branches.append("done" if not self._active else "on" if condition else "off")

    def _elif(self, command: Command) -> None:
        condition = "".join(self._arguments(command)).lower() in TRUE
        was = self._branches[-1]
        self._branches[-1] = "done" if was != "off" else "on" if condition else "off"

    def _else(self, _command: Command) -> None:
        self._branches[-1] = "on" if self._branches[-1] == "off" else "done"

    def _endif(self, _command: Command) -> None:
        self._branches.pop()

    def _set(self, command: Command) -> None:
        if found := self._arguments(command):
            self._variables[found[0]] = "".join(found[1:])

    def _unset(self, command: Command) -> None:
        for name in self._arguments(command):
            self._variables.pop(name, None)

    def _getenv(self, command: Command) -> None:
        name, variable = self._arguments(command)
        if variable in self._environment:
            self._variables[name] = self._environment[variable]

    def _g(self, command: Command) -> list[pq.abc.PGresult]:
        self._script.drop()
        return self._execute(command.begun) if command.begun.strip() else []

    def _gset(self, command: Command) -> None:
        prefix = "".join(self._arguments(command))
        for result in self._g(command)[-1:]:
            for column in range(result.nfields if result.ntuples == 1 else 0):
                name = prefix + (result.fname(column) or b"").decode()
                value = result.get_value(0, column)
                self._variables.pop(name, None)
                if value is not None:
                    self._variables[name] = value.decode(errors="surrogateescape")

    def _gexec(self, command: Command) -> None:
        for result in self._g(command):
            for row in range(result.ntuples):
                for column in range(result.nfields):
                    if (value := result.get_value(row, column)) is not None:
                        self._execute(value.decode(errors="surrogateescape"))

    def _c(self, command: Command) -> None:
        given = [each for each in self._arguments(command) if each]
        wanted = dict(zip(("dbname", "user"), given, strict=False))
        if not self._connect({name: value for name, value in wanted.items() if value != "-"}):
            self.counts.errors["no connection"] += 1

    def _psql_copy(self, command: Command) -> None:
        words = command.arguments.strip().rstrip(";").lower()
        if " stdin" in words or " stdout" in words:
            self._execute(f"COPY {command.arguments.strip().rstrip(';')}")
        else:
            self.counts.skipped["copy with a file"] += 1


_BRANCHES: Final[Mapping[str, Callable[[Psql, Command], object]]] = {
    "if": Psql._if,
    "elif": Psql._elif,
    "else": Psql._else,
    "endif": Psql._endif,
}
_COMMANDS: Final[Mapping[str, Callable[[Psql, Command], object]]] = {
    "set": Psql._set,
    "unset": Psql._unset,
    "getenv": Psql._getenv,
    "g": Psql._g,
    "gx": Psql._g,
    "crosstabview": Psql._g,
    "gset": Psql._gset,
    "gexec": Psql._gexec,
    "c": Psql._c,
    "connect": Psql._c,
    "copy": Psql._psql_copy,
}
