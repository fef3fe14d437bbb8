"""Where statements of a psql script end, and what its variables become."""

from __future__ import annotations

import pytest

from suites.script import Command, Script, Statement, arguments


def items(text: str, variables: dict[str, str] | None = None, *, standard_strings: bool = True) -> list[str]:
    """Statements as they are, commands with a backslash."""
    script, found = Script(text), []
    while (item := script.next(variables or {}, standard_strings=standard_strings)) is not None:
        found.append(item.text.strip() if isinstance(item, Statement) else f"\\{item.name}{item.arguments}")
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT 1; SELECT 2;\n", ["SELECT 1", "SELECT 2"]),
        ("SELECT ';', \";\", $$;$$, $a$ ; $$ $a$;", ["SELECT ';', \";\", $$;$$, $a$ ; $$ $a$"]),
        (r"SELECT E'\';', 'a\'; SELECT 1;", [r"SELECT E'\';', 'a\'", "SELECT 1"]),
        ("SELECT 1 -- ; no\n; SELECT /* ; /* */ ; */ 2;", ["SELECT 1", "SELECT   2"]),
        (r"SELECT 1\; SELECT 2;", ["SELECT 1; SELECT 2"]),
        ("CREATE RULE r AS ON INSERT TO t DO (SELECT 1; SELECT 2);", None),
        ("CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT 1; SELECT CASE WHEN true THEN 1 END; END;", None),
        ("SELECT x$1, a[1:2], b::int, ':v';", None),
        ("SELECT 1", ["SELECT 1"]),
        ("SELECT 1 AS x \\gset p_\n\\echo :p_x\nSELECT 2;", ["\\gset p_", "\\echo :p_x", "SELECT 1 AS x \n\nSELECT 2"]),
    ],
)
def test_statements_end_where_psql_ends_them(text: str, expected: list[str] | None) -> None:
    assert items(text) == (expected or [text.rstrip(";")])


def test_a_backslash_hides_a_quote_where_strings_are_not_standard() -> None:
    assert items(r"SELECT 'a\';b'; SELECT U&'\0061';", standard_strings=False) == [
        r"SELECT 'a\';b'",
        r"SELECT U&'\0061'",
    ]


def test_variables() -> None:
    known = {"v": "it's", "n": "7"}
    text = "SELECT :'v', :\"v\", :n, :unknown, :{?n}, :{?m};"
    assert items(text, known) == ["SELECT 'it''s', \"it's\", 7, :unknown, TRUE, FALSE"]
    assert arguments(r" name :n 'a\'b' :'v'x", known) == ["name", "7", "a'b", "it'sx"]


def test_data_stands_behind_the_line_that_asks_for_it() -> None:
    script = Script("COPY t FROM stdin; SELECT 2;\n1\ta;b\n\\N\t\\.x\n\\.\nSELECT 3;")
    assert script.next({}) == Statement("COPY t FROM stdin")
    assert script.copy_data() == "1\ta;b\n\\N\t\\.x\n"
    assert [script.next({}), script.next({})] == [Statement(" SELECT 2"), Statement("\nSELECT 3")]


def test_a_command_knows_the_statement_that_was_begun() -> None:
    script = Script("SELECT 1 \\g\nSELECT 2;")
    assert script.next({}) == Command("g", "", "SELECT 1 ")
    script.drop()
    assert script.next({}) == Statement("\nSELECT 2")
