"""The regression schedule against one server: the database `regression`, the folders that the files
name, then file by file.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psycopg
from psycopg import conninfo

from suites.archive import Suite
from suites.perl import publisher
from suites.psql import Counts, Psql

AfterEach = Callable[[str], None]
DATABASE: Final = "regression"
OF_PSQL_ITSELF: Final = ("psql", "psql_crosstab", "psql_pipeline")
"""Files of the schedule that try psql, not the server."""

# As pg_regress sets them.
SETTINGS: Final = {
    "lc_messages": "C",
    "lc_monetary": "C",
    "lc_numeric": "C",
    "lc_time": "C",
    "bytea_output": "hex",
    "timezone_abbreviations": "Default",
}
OPTIONS: Final = "-c intervalstyle=postgres_verbose -c datestyle=Postgres,MDY -c timezone=America/Los_Angeles -c statement_timeout=300s"

FULL_IDENTITY: Final = """
CREATE SCHEMA twofold_suite;
CREATE FUNCTION twofold_suite.give_identity() RETURNS event_trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog AS $$
DECLARE made record;
BEGIN
  FOR made IN SELECT c.oid::regclass AS name FROM pg_event_trigger_ddl_commands() d JOIN pg_class c ON c.oid = d.objid
    WHERE d.classid = 'pg_class'::regclass AND d.command_tag IN ('CREATE TABLE', 'CREATE TABLE AS', 'SELECT INTO')
      AND c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
      AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary)
  LOOP
    EXECUTE format('ALTER TABLE %s REPLICA IDENTITY FULL', made.name);
  END LOOP;
EXCEPTION WHEN OTHERS THEN
  RAISE NOTICE 'no identity: %', SQLERRM;
END $$;
CREATE EVENT TRIGGER twofold_identity ON ddl_command_end EXECUTE FUNCTION twofold_suite.give_identity();
GRANT USAGE ON SCHEMA twofold_suite TO public;
"""
"""Tables without a primary key get the replica identity FULL: without, PostgreSQL refuses their
updates where all are published.
"""


@dataclass
class Ran:
    """What became of the files."""

    files: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    seconds: float = 0

    def add(self, other: Ran) -> None:
        self.files += other.files
        self.left_out += other.left_out
        self.counts.add(other.counts)
        self.seconds += other.seconds


class Schedule:
    """A database made for the suite, and the files run in it."""

    def __init__(self, suite: Suite, server_dsn: str, folder: Path) -> None:
        self._suite = suite
        self._server_dsn = server_dsn
        self._folder = folder
        self.dsn = conninfo.make_conninfo(server_dsn, dbname=DATABASE)

    def files(self) -> list[str]:
        """All, in their order."""
        return self._suite.schedule()

    def prepare(self) -> None:
        """Make the database and what the files expect to be there."""
        shutil.copytree(self._suite.folder / "data", self._folder / "data")
        (self._folder / "results").mkdir()
        for path in (self._folder, *self._folder.rglob("*")):
            path.chmod(0o777 if path.is_dir() else 0o644)
        with psycopg.connect(self._server_dsn, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {DATABASE} TEMPLATE template0")
            for name, value in SETTINGS.items():
                connection.execute(f"ALTER DATABASE {DATABASE} SET {name} TO '{value}'")
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(FULL_IDENTITY)

    def run(self, wanted: Iterable[str], after_each: AfterEach = lambda _name: None) -> Ran:
        """Run these files, in this order; `after_each` may look whether it makes sense to go on."""
        ran, begun = Ran(), time.monotonic()
        for name in wanted:
            if name in OF_PSQL_ITSELF:
                ran.left_out.append(name)
                continue
            text = (self._suite.folder / "sql" / f"{name}.sql").read_bytes().decode(errors="surrogateescape")
            ran.counts.add(self._psql(text).run())
            ran.files.append(name)
            after_each(name)
        ran.seconds = time.monotonic() - begun
        return ran

    def run_publishers(self, after_each: AfterEach = lambda _name: None) -> Ran:
        """Run what the tests of logical replication do on their publisher, each test in a schema of
        its own.
        """
        ran, begun = Ran(), time.monotonic()
        for file in self._suite.subscriptions():
            schema = f"tap_{file.stem}"
            with psycopg.connect(self.dsn, autocommit=True) as connection:
                connection.execute(f"CREATE SCHEMA {schema}")
            found = publisher(file.read_text())
            ran.counts.skipped["no literal"] += found.left_out
            for script in found.scripts:
                ran.counts.add(self._psql(script, f" -c search_path={schema},public").run())
            ran.files.append(file.name)
            after_each(file.name)
        ran.seconds = time.monotonic() - begun
        return ran

    def _psql(self, text: str, options: str = "") -> Psql:
        environment = {
            "PG_ABS_SRCDIR": str(self._folder),
            "PG_ABS_BUILDDIR": str(self._folder),
            "PG_LIBDIR": "/no/regress/library",
            "PG_DLSUFFIX": ".so",
        }
        dsn = conninfo.make_conninfo(
            self.dsn, options=OPTIONS + options, client_encoding="UTF8", application_name="pg_regress"
        )
        return Psql(dsn, text, environment)
