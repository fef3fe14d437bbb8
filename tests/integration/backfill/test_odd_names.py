"""Names with a dot, a backslash or a quote: of schemas, tables, publications and roles. The
statements and commands in messages are carried out as they stand.
"""

from __future__ import annotations

import re
import shlex

import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from fixtures.backfill import initialised, ready
from fixtures.connector import Installation, Maker, wait_until
from helpers.topic_changes import delete_topic
from twofold.doctor import examine
from twofold.errors import SetupError
from twofold_avro.names import topic_of

ACCOUNT = "CREATE TABLE account (id int PRIMARY KEY, version int NOT NULL, note text)"
ODD = ["a.b", "back\\slash", 'dou"ble', "sin'gle", '"', "\\", "$HOME `x`"]
KEYS = "SELECT jsonb_agg(id ORDER BY id) FROM {}"


def quoted(*name: str) -> str:
    return sql.Identifier(*name).as_string(None)


def keys(here: Installation, schema: str, table: str) -> list[int]:
    seen = here.reader.read([topic_of(here.prefix, schema, table)])
    return sorted({s.key["id"] for s in seen if s.value and s.value["op"] != "t"})


def missing(here: Installation) -> str | None:
    """What `init` says is missing."""
    try:
        here.initialise()
    except SetupError as error:
        return str(error)
    return None


def test_schemas_and_tables(connector: Maker) -> None:
    """Loaded, streamed, reloaded by the command that a refusal names; a schema and a table that
    share a dot are two tables.
    """
    names = [*((odd, "t") for odd in ODD), *(("public", odd) for odd in ODD), ("a", "b.t"), ("a.b", "*")]
    listed = [quoted(schema) + ".*" for schema in ODD] + [f"public.{quoted(table)}" for table in ODD] + ["a.b.t"]
    here = connector(init=False, source={"tables": ["public.account", *listed]})
    here.sql(ACCOUNT, *(f"CREATE SCHEMA {quoted(schema)}" for schema in ["a", *ODD]))
    for schema, table in names:
        here.sql(
            f"CREATE TABLE {quoted(schema, table)} (id int PRIMARY KEY)",
            f"INSERT INTO {quoted(schema, table)} VALUES (1)",
        )
    with initialised(here):
        here.sql(*(f"INSERT INTO {quoted(*name)} VALUES (2)" for name in names))
        here.caught_up()
    assert [keys(here, *name) for name in names] == [[1, 2]] * len(names)
    names = [*names[: len(ODD) : 2], *names[len(ODD) + 1 :: 3]]  # a recovery for each
    topics = [topic_of(here.prefix, *name) for name in names]
    delete_topic(here.reader.bootstrap, *topics)
    for _ in range(len(names)):
        refusal = str(here.refusal())
        command = re.search(r"twofold backfill start ([^\n]*)", refusal)
        assert command, refusal
        words = shlex.split(command[1])
        done = here.twofold("backfill", "start", *words)
        assert done.returncode == 0, f"{refusal}\n{done.stderr}"
        if len([s for s in here.reader.read([f"{here.prefix}.progress"]) if s.value == "start"]) >= len(names):
            break
    with here.carrying():
        wait_until(lambda: [keys(here, *name) for name in names] == [[1, 2]] * len(names), 90, "all are loaded again")


def test_a_table_that_is_named_without_quotes(connector: Maker) -> None:
    """Where that has one meaning; where it has two, it is said how to write them."""
    here = connector(init=False, source={"tables": ["public.account", '"a.b".*', "a.*"]})
    here.sql(ACCOUNT, 'CREATE SCHEMA "a.b"', "CREATE SCHEMA a")
    here.sql('CREATE TABLE "a.b".c (id int)', 'CREATE TABLE "a.b".d (id int)', 'CREATE TABLE a."b.c" (id int)')
    here.initialise()

    def start(name: str) -> str:
        done = here.twofold("backfill", "start", name)
        return done.stdout + done.stderr

    assert f"{here.prefix}.a_x2e_b.d;" in start("a.b.d")
    assert f"{here.prefix}.a_x2e_b.c;" in start('"a.b".c')
    assert f"{here.prefix}.a.b_x2e_c;" in start("a.b.c")
    assert "did you mean '\"a.b\".d'?" in start('"a.b".dd')


@pytest.mark.parametrize("publication", ["".join(ODD), "\\"], ids=["all in one", "backslash"])
def test_publications(connector: Maker, publication: str) -> None:
    here = connector(init=False, source={"publication": publication, "tables": ["public.account", "public.t"]})
    here.sql(ACCOUNT, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    with initialised(here):
        here.sql("INSERT INTO t VALUES (2)")
        here.caught_up()
    assert keys(here, "public", "t") == [1, 2]


def test_each_right_that_is_missing_is_named_by_a_statement(connector: Maker) -> None:
    """Replication, the schema, the table, row security: what the message says is
    granted, until the rows are loaded. `doctor` names the same.
    """
    schema, table, role = 'sch.e"ma', "ta'b\\le", "ro\"l.e'\\"
    publication, full = 'pub"', quoted(schema, table)
    here = connector(init=False, source={"tables": [], "publication": publication})
    here.sql(
        ACCOUNT,
        f"CREATE SCHEMA {quoted(schema)}",
        f"CREATE TABLE {full} (id int PRIMARY KEY, tenant text)",
        f"ALTER TABLE {full} ENABLE ROW LEVEL SECURITY",
        f"INSERT INTO {full} VALUES (1, 'x'), (2, 'y')",
        f"CREATE ROLE {quoted(role)} LOGIN",
        f"CREATE POLICY all_of_it ON {full} TO {quoted(role)} USING (tenant = 'x')",
        f"CREATE PUBLICATION {quoted(publication)} FOR TABLE account, {full}",
        f"GRANT SELECT ON account TO {quoted(role)}",
    )
    here.at_end(here.sql, f"DROP OWNED BY {quoted(role)}", f"DROP ROLE {quoted(role)}")
    here.configure({"source": {"dsn": make_conninfo(here.conninfo, user=role)}})
    granted = []
    while said := missing(here):
        statements = said.partition("remedy: ")[2]
        assert statements not in granted, said
        granted.append(statements)
        here.sql(statements)
    assert granted == [
        f"ALTER ROLE {quoted(role)} REPLICATION",
        f"GRANT USAGE ON SCHEMA {quoted(schema)} TO {quoted(role)}; GRANT SELECT ON {full} TO {quoted(role)}; ALTER ROLE {quoted(role)} BYPASSRLS;",
    ]
    with here.carrying():
        ready(here)
    assert keys(here, schema, table) == [1, 2]
    here.sql(f"ALTER ROLE {quoted(role)} NOBYPASSRLS")
    (found,) = [each for each in examine(here.config) if each.check == "may_not_read"]
    assert found.remedy == (f"ALTER ROLE {quoted(role)} BYPASSRLS;",)
