"""The tables that a person names, and what is offered for one that is not published."""

from __future__ import annotations

import pytest

from twofold.errors import UsageError
from twofold.inspect.status_report import choose_topics

KNOWN = {("public", "t"): "p.public.t", ("shop", "t"): "p.shop.t", ("public", "accounts"): "p.public.accounts"}


def test_a_table_is_named_with_its_schema() -> None:
    assert choose_topics(["public.t", "public.accounts"], KNOWN, "bank") == ["p.public.t", "p.public.accounts"]


@pytest.mark.parametrize(
    ("name", "meant"),
    [("t", "public.t shop.t"), ("accounts", "public.accounts"), ("public.acounts", "public.accounts")],
)
def test_a_name_without_its_schema_or_misspelt_is_known(name: str, meant: str) -> None:
    with pytest.raises(UsageError, match=rf"not published: {name}; .* did you mean {meant}\?"):
        choose_topics([name], KNOWN, "bank")
