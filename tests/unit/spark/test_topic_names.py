"""Which table a topic is of, whatever its name's length."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.spark.writer import table
from twofold_avro import schemas
from twofold_avro.names import avro_name, event_topic_of, postgres_name, topic_of
from twofold_spark.errors import TableRefused
from twofold_spark.sinks.interface import MirrorTable
from twofold_spark.sinks.jdbc_tables import Names, check_name_lengths
from twofold_spark.sources.topic_names import is_table_topic, parse_topic_name, subject_of, table_topics_pattern

_NAME = st.text(st.characters(min_codepoint=1, codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=63)


@given(st.from_regex(r"[a-z][a-z0-9._-]{0,149}", fullmatch=True), _NAME, _NAME)
def test_every_topic_of_a_table_is_found_and_leads_back_to_its_names(prefix: str, schema: str, name: str) -> None:
    shape = table(name, {"id": "int8"}, schema=schema)
    topic = topic_of(prefix, schema, name)
    found = parse_topic_name(topic, prefix, schemas.envelope_schema(shape, prefix))
    assert tuple(map(postgres_name, found)) == (schema, name)
    assert subject_of(prefix, ".".join(found)) == f"{topic}-value"
    assert re.fullmatch(table_topics_pattern(prefix), topic)


@pytest.mark.parametrize("own", ["commits", "progress", "prepared", "messages"])
def test_the_connectors_own_topics_are_no_tables(own: str) -> None:
    assert not re.fullmatch(table_topics_pattern("shop"), f"shop.{own}")


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=300))
def test_an_outbox_topic_is_no_tables(name: str) -> None:
    topic = event_topic_of("shop", name)
    assert not re.fullmatch(table_topics_pattern("shop"), topic)
    assert not is_table_topic(topic, "shop")
    assert not is_table_topic("shop.messages", "shop")
    assert is_table_topic(topic_of("shop", "outbox", name), "shop")


def test_a_columns_name_that_postgresql_would_cut_off_is_refused() -> None:
    t = MirrorTable("shop.public.goods", "public", "goods", ("id",))
    check_name_lengths(Names(), t, ["id", "x" * 63])
    with pytest.raises(TableRefused, match=r"x43e_.*63 bytes"):
        check_name_lengths(Names(), t, ["id", avro_name("описание_товара")])
