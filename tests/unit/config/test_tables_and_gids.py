"""What the configuration's words for tables, and its rules for gids, mean."""

from __future__ import annotations

import pytest

from twofold.config import Config, GidRule, PreparedConfig
from twofold.errors import UsageError
from twofold.run.source_settings import wanted_publication
from twofold.source.provisioning import PublicationContent


def config(*tables: str, publish_via_root: bool = False) -> Config:
    return Config.model_validate(
        {
            "name": "bank",
            "source": {"dsn": "", "tables": tables, "publish_via_root": publish_via_root},
            "kafka": {"bootstrap": "localhost:9092"},
            "registry": {"url": "http://localhost"},
        }
    )


def test_tables_schemas_and_all() -> None:
    assert wanted_publication(config("public.account", "Odd Schema.a.b", "shop.*")) == PublicationContent(
        (("public", "account"), ("Odd Schema", "a.b")), ("shop",), via_partition_root=False
    )
    assert wanted_publication(config("public.account", "*", publish_via_root=True)) == PublicationContent(
        all_tables=True, via_partition_root=True
    )


def test_none_is_made_where_none_is_named() -> None:
    assert wanted_publication(config()) is None


@pytest.mark.parametrize("entry", ["account", "public.", ".account", "", ".*"])
def test_what_is_neither_is_named(entry: str) -> None:
    with pytest.raises(UsageError, match=r"must be schema\.table, schema"):
        wanted_publication(config(entry))


@pytest.mark.parametrize(
    ("gid", "parks"),
    [
        ("xa-keep-1", False),  # the first rule that fits, though a later one fits as well
        ("xa-1", True),
        ("XA-1", False),  # letters differ by case
        ("job7", True),
        ("job17", False),
        ("", False),
        ("a\nreport", True),  # * takes any character
    ],
)
def test_the_rules_by_gid(gid: str, parks: bool) -> None:
    rules = PreparedConfig(  # type: ignore[call-arg]
        rules=(
            GidRule(gid="xa-keep-*", action="open"),
            GidRule(gid="xa-*", action="park"),
            GidRule(gid="job[0-9]", action="park"),
            GidRule(gid="*report", action="park"),
        )
    )
    assert rules.parks(gid) is parks


def test_without_rules_all_are_opened() -> None:
    assert not PreparedConfig().parks("anything")  # type: ignore[call-arg]
