"""Names there and back: legal on the far side, exact on the way home, never two the same."""

from __future__ import annotations

import re

from hypothesis import example, given
from hypothesis import strategies as st

from twofold_avro.names import TOPIC_MAX, avro_name, namespace_of, postgres_name, topic_of

LOOKALIKES = st.text("_x5f20 é.1", min_size=1, max_size=12)
NAMES = st.one_of(
    LOOKALIKES, st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=63)
)


@given(NAMES)
@example("_x")
@example("_x5é")
@example("_x5f_")
@example("1_")
@example("9")
def test_a_name_comes_back(name: str) -> None:
    escaped = avro_name(name)
    assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", escaped)
    assert postgres_name(escaped) == name


@given(NAMES, NAMES)
def test_two_names_never_meet(one: str, other: str) -> None:
    assert (avro_name(one) == avro_name(other)) == (one == other)


def test_ordinary_names_stay() -> None:
    for name in ("id", "createdAt", "_private", "a1", "__", "x_1"):
        assert avro_name(name) == name
    assert topic_of("shop", "public", "order-lines") == "shop.public.order-lines"


@given(NAMES, NAMES, NAMES, NAMES)
@example("a.b", "c", "a", "b.c")
@example("é" * 31, "é" * 31, "é" * 31, "é" * 30 + "è")
def test_a_topic_is_one_tables(schema: str, table: str, other_schema: str, other_table: str) -> None:
    topic = topic_of("pre.fix", schema, table)
    assert re.fullmatch(r"[a-zA-Z0-9._-]+", topic)
    assert len(topic) <= TOPIC_MAX
    same = (schema, table) == (other_schema, other_table)
    assert (topic == topic_of("pre.fix", other_schema, other_table)) == same


def test_a_topics_parts_come_back() -> None:
    _, schema, table = topic_of("shop", "my schema", "a.b").split(".")
    assert (postgres_name(schema), postgres_name(table)) == ("my schema", "a.b")


def test_a_namespace_has_legal_parts() -> None:
    assert namespace_of("eu-1.shop", "public", "a.b") == "eu_x2d_1.shop.public.a_x2e_b"
