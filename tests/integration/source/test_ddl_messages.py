"""DDL in the stream: what the event triggers write, where, and that they never stand in the way."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import psycopg
import pytest

from twofold.descriptions.ddl_message import PREFIX, parse_ddl_message
from twofold.errors import SetupError
from twofold.source import ddl_messages
from twofold.source import messages as m
from twofold.source.connection import PlainConnection, connect
from twofold.source.decoder import decode

TABLES = """
CREATE SCHEMA s;
CREATE TABLE s.t (id int PRIMARY KEY, email text, v int);
CREATE TABLE s.f (id int NOT NULL, v int);
ALTER TABLE s.f REPLICA IDENTITY FULL;
CREATE UNIQUE INDEX f_id ON s.f (id);
CREATE TABLE s.root (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE s.leaf PARTITION OF s.root FOR VALUES FROM (0) TO (10);
CREATE TABLE s."odd ""name" (id int PRIMARY KEY);
CREATE TABLE public.other (id int PRIMARY KEY);
CREATE PUBLICATION p FOR TABLES IN SCHEMA s;
"""


class Source:
    def __init__(self, connection: PlainConnection) -> None:
        self.connection = connection

    def run(self, *statements: str) -> list[m.Message]:
        """What the stream has of these statements, each in a transaction of its own."""
        for statement in statements:
            self.connection.execute(statement)
        rows = self.connection.execute(
            "SELECT data FROM pg_logical_slot_get_binary_changes('x', NULL, NULL, 'proto_version', '3', 'two_phase', 'on', 'publication_names', 'p', 'messages', 'true')"
        ).fetchall()
        return [decode(data, in_stream=False) for (data,) in rows]

    def told(self, *statements: str) -> list[tuple[str, str]]:
        """The commands and tables that are told."""
        contents = [json.loads(each.content) for each in messages(self.run(*statements)) if each.prefix == PREFIX]
        assert not [each for each in contents if "failed" in each], contents
        return [(each["command"], each["table"]["name"]) for each in contents]


def messages(said: list[m.Message]) -> list[m.LogicalMessage]:
    """Those that tell something."""
    return [each for each in said if isinstance(each, m.LogicalMessage) and each.content]


@pytest.fixture
def source(database: str) -> Iterator[Source]:
    with connect(database) as connection:
        connection.execute(TABLES)
        connection.execute("SELECT pg_create_logical_replication_slot('x', 'pgoutput', false, true)")
        ddl_messages.install(database, "one")
        here = Source(connection)
        here.run()
        yield here


def test_each_command_tells_of_the_tables_that_it_touches(source: Source) -> None:
    assert source.told("ALTER TABLE s.t RENAME TO u", "ALTER TABLE s.u RENAME TO t") == [
        ("ALTER TABLE", "u"),
        ("ALTER TABLE", "t"),
    ]
    assert source.told("DROP INDEX s.f_id") == [("DROP INDEX", "f")]
    assert source.told("CREATE UNIQUE INDEX f_id ON s.f (id)") == [("CREATE INDEX", "f")]
    assert source.told("CREATE INDEX CONCURRENTLY f_v ON s.f (v)") == [("CREATE INDEX", "f")]
    assert source.told("DROP INDEX CONCURRENTLY s.f_v") == [("DROP INDEX", "f")]
    assert {table for _, table in source.told("ALTER TABLE s.root ADD v int")} == {"root", "leaf"}
    assert source.told("ALTER TABLE s.root DETACH PARTITION s.leaf")
    assert source.told('ALTER TABLE s."odd ""name" ADD v int') == [("ALTER TABLE", 'odd "name')]
    assert {table for _, table in source.told("ALTER SCHEMA s RENAME TO z", "ALTER SCHEMA z RENAME TO s")} == {"t", "f", "root", "leaf", 'odd "name'}  # fmt: skip
    assert source.told("ALTER PUBLICATION p ADD TABLE public.other") == [("ALTER PUBLICATION", "other")]
    assert ("ALTER PUBLICATION", "t") in source.told("ALTER PUBLICATION p SET (publish = 'insert')")
    nothing = ("ALTER TABLE public.other2 ADD v int", "CREATE TEMP TABLE temporary (id int PRIMARY KEY)", "DROP TABLE public.other2", "CREATE VIEW public.w AS SELECT 1")  # fmt: skip
    assert source.told("CREATE TABLE public.other2 (id int PRIMARY KEY)", *nothing) == []


def test_a_command_reads_no_large_catalog_as_a_whole(source: Source) -> None:
    """Else each command of a database with many tables takes long."""
    plans: list[str] = []
    source.connection.add_notice_handler(lambda notice: plans.append(notice.message_primary or ""))
    source.run(
        "LOAD 'auto_explain'",
        "SET auto_explain.log_min_duration = 0",
        "SET auto_explain.log_nested_statements = on",
        "SET client_min_messages = log",
        "ALTER TABLE s.t ADD v2 int",
    )
    read = [found for plan in plans for found in re.findall(r"(\w+) Scan using \w+ on (\w+)|(Seq) Scan on (\w+)", plan)]
    assert {index_scan[1] for index_scan in read} >= {"pg_class", "pg_inherits"}
    assert {seq_scan[3] for seq_scan in read} - {""} <= {"pg_publication"}, "\n".join(plans)


def test_messages_lie_between_the_rows_also_of_prepared_transactions(source: Source) -> None:
    insert = "INSERT INTO s.t (id) VALUES ({})"
    statements = [
        *("BEGIN", insert.format(1), "ALTER TABLE s.t DROP v", "SAVEPOINT a", "ALTER TABLE s.t RENAME email TO x", insert.format(2)),
        *("ROLLBACK TO a", "ALTER TABLE s.t RENAME email TO mail", insert.format(3)),
    ]  # fmt: skip
    for end in ("COMMIT", "PREPARE TRANSACTION 'g'"):
        if end != "COMMIT":
            source.run("ALTER TABLE s.t RENAME mail TO email", "ALTER TABLE s.t ADD v int", "DELETE FROM s.t")
        said = source.run(*statements, end)
        told = messages(said)
        kinds = [type(each).__name__ for each in said if each in told or isinstance(each, m.Insert)]
        assert kinds == ["Insert", "LogicalMessage", "LogicalMessage", "Insert"], "\n".join(map(str, said))
        assert [
            [c.name for c in each.described.columns]
            for each in (parse_ddl_message(each.content, "p") for each in told)
            if each
        ] == [["id", "email"], ["id", "mail"]]
    source.run("ROLLBACK PREPARED 'g'")


def test_a_user_who_may_little_and_a_hostile_search_path_are_told_of(source: Source) -> None:
    source.run(
        "CREATE SCHEMA evil",
        "CREATE FUNCTION evil.jsonb_build_object(VARIADIC text[]) RETURNS jsonb LANGUAGE sql AS 'SELECT NULL::jsonb'",
        "DO $$ BEGIN IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'ddl_user') THEN CREATE ROLE ddl_user; END IF; END $$",
        "GRANT ALL ON SCHEMA s TO ddl_user",
        "ALTER TABLE s.t OWNER TO ddl_user",
    )
    hostile = ("SET search_path = evil, pg_catalog", "SET session_replication_role = replica", "SET ROLE ddl_user")
    for statement in (*hostile, "ALTER TABLE s.t ADD w int", "ALTER TABLE s.t DROP w"):
        source.connection.execute(statement)
    assert source.told("RESET ROLE", "RESET ALL") == [("ALTER TABLE", "t")] * 2
    source.run("REASSIGN OWNED BY ddl_user TO CURRENT_USER", "DROP OWNED BY ddl_user")


def test_an_error_of_the_function_fails_no_command(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    body = "CREATE OR REPLACE FUNCTION twofold.tell_ddl() RETURNS event_trigger LANGUAGE plpgsql AS $f$" + ddl_messages._BODY.replace("told.described FROM", "1 / 0 FROM")  # fmt: skip
    source.run(body + "$f$")
    [message] = messages(source.run("ALTER TABLE s.t ADD w int"))
    assert json.loads(message.content) == {"command": "ALTER TABLE", "failed": "22012"}
    assert ddl_messages.flaws_in(source.connection)


def test_triggers_are_shared_and_the_last_reset_removes_them(source: Source, database: str) -> None:
    asked = source.connection
    ddl_messages.install(database, "one")
    ddl_messages.install(database, "two")
    assert ddl_messages.flaws_in(asked) == ()
    assert not ddl_messages.remove(database, "one")
    assert not ddl_messages.remove(database, "stranger")
    assert ddl_messages.flaws_in(asked) == ()
    assert ddl_messages.remove(database, "two")
    assert ddl_messages.flaws_in(asked)
    assert asked.execute("SELECT FROM pg_namespace WHERE nspname = 'twofold'").fetchone() is None
    asked.execute("CREATE SCHEMA twofold")
    assert not ddl_messages.remove(database, "two")
    with pytest.raises(SetupError, match="schema twofold exists, and twofold init has not made it"):
        ddl_messages.install(database, "two")


def test_a_role_that_may_not_gets_the_statements(source: Source, database: str) -> None:
    ddl_messages.remove(database, "one")
    source.run(
        "DO $$ BEGIN IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'ddl_user') THEN CREATE ROLE ddl_user; END IF; END $$"
    )
    source.run("ALTER ROLE ddl_user LOGIN")
    with pytest.raises(SetupError, match="may not make event triggers") as refused:
        ddl_messages.install(psycopg.conninfo.make_conninfo(database, user="ddl_user"), "one")
    statements = str(refused.value).split(":\n", 1)[1]
    source.connection.execute(statements)
    assert ddl_messages.flaws_in(source.connection) == ()
    assert ddl_messages.remove(database, "one")
