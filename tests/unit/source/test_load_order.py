"""The queries of a load: rows come in the order of the key's index, which may be another one than
that of the column.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from twofold.source.messages import Relation, RelationColumn
from twofold.source.published_tables import DescribedTable, KeyOrder
from twofold.source.table_copier import _query
from twofold_avro.shapes import ColumnShape, TableShape, TypeShape

USUAL = KeyOrder("k", "character varying(9)", None, None, "pg_catalog", "<", ">", "=", "k text")
COLLATED = replace(USUAL, collation=("pg_catalog", "C"), identity="k text pg_catalog C")
OTHER_CLASS = replace(USUAL, type="public.citext", cast="text", identity="k text")
PATTERNS = replace(USUAL, before="~<~", behind="~>~", identity="k text ~>~")
NUMBER = KeyOrder("n", "integer", None, None, "pg_catalog", "<", ">", "=", "n int4")


def query(*key: KeyOrder, again: bool = False) -> str:
    columns = tuple(
        ColumnShape(order.column, TypeShape(25, "pg_catalog", "text"), in_key=True, in_identity=True) for order in key
    )
    said = tuple(RelationColumn(each.column, 25, -1, True) for each in key)
    described = DescribedTable(Relation(7, "s", "t", "default", said), None, False, (key,))
    texts = {"k": "a", "n": "1"}
    shape = TableShape(7, "s", "t", columns)
    made = _query(described, shape, after=None if again else texts, among=[texts] if again else None, limit=5)
    return made.as_string(None)


@pytest.mark.parametrize(
    ("order", "behind", "by"),
    [
        (USUAL, """("s"."t"."k") > ('a'::character varying(9))""", '"s"."t"."k"'),
        (
            COLLATED,
            """("s"."t"."k" COLLATE "pg_catalog"."C" OPERATOR("pg_catalog".>) 'a'::character varying(9) COLLATE "pg_catalog"."C")""",
            '"s"."t"."k" COLLATE "pg_catalog"."C" USING OPERATOR("pg_catalog".<)',
        ),
        (
            OTHER_CLASS,
            """("s"."t"."k"::text OPERATOR("pg_catalog".>) 'a'::public.citext::text)""",
            '"s"."t"."k"::text USING OPERATOR("pg_catalog".<)',
        ),
        (
            PATTERNS,
            """("s"."t"."k" OPERATOR("pg_catalog".~>~) 'a'::character varying(9))""",
            '"s"."t"."k" USING OPERATOR("pg_catalog".~<~)',
        ),
    ],
    ids=["usual", "collation", "operator class", "patterns"],
)
def test_rows_follow_the_last_key_in_the_order_of_the_index(order: KeyOrder, behind: str, by: str) -> None:
    assert f"WHERE {behind} ORDER BY {by} LIMIT 5" in query(order)


def test_rows_of_several_columns_are_compared_one_by_one_if_one_has_an_order_of_its_own() -> None:
    assert """("s"."t"."n", "s"."t"."k") > ('1'::integer, 'a'::character varying(9))""" in query(NUMBER, USUAL)
    found = query(NUMBER, PATTERNS)
    assert """WHERE ("s"."t"."n" OPERATOR("pg_catalog".>) '1'::integer OR "s"."t"."n" OPERATOR("pg_catalog".=) '1'::integer AND """ in found  # fmt: skip
    assert 'ORDER BY "s"."t"."n", "s"."t"."k" USING OPERATOR("pg_catalog".~<~)' in found
    assert """"k"::text OPERATOR("pg_catalog".=) 'a'::public.citext::text""" in query(OTHER_CLASS, again=True)
    assert "ORDER BY" not in query(OTHER_CLASS, again=True)


def test_order_is_that_of_the_index_with_exactly_these_columns() -> None:
    relation = Relation(7, "s", "t", "default", ())
    described = DescribedTable(relation, None, False, ((USUAL, NUMBER), (COLLATED,), (NUMBER,)))
    assert described.key_order(frozenset({"k"})) == (COLLATED,)
    assert described.key_order(frozenset({"n", "k"})) == (USUAL, NUMBER)
