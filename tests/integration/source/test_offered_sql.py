"""What is offered for copying into psql is printable, and means exactly what it names."""

from __future__ import annotations

import psycopg

from twofold_common.printable import printable, sql_literal
from twofold_common.table_names import sql_identifier

HOSTILE = "a\n\r\x1b[2J\u202e\u2028\"'\\\\+x\U000e0001; --"


def test_names_and_texts_are_exact(database: str) -> None:
    for text in (HOSTILE, "plain", 'with "quotes" and \\\\000a'):
        create = (
            f"CREATE TABLE {sql_identifier('public', text)} ({sql_identifier(text)} text DEFAULT {sql_literal(text)})"
        )
        assert printable(create) == create
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute(create.encode())
            connection.execute(f"INSERT INTO {sql_identifier(text)} DEFAULT VALUES".encode())
            found = connection.execute(f"SELECT * FROM {sql_identifier(text)}".encode())
            assert found.description is not None
            assert (found.description[0].name, found.fetchone()) == (text, (text,))
