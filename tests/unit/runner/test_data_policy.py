"""The data policy of a table's shape: which rule holds, and what cannot hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from twofold.config import load
from twofold.errors import Refused, UsageError
from twofold.runner.data_policy import DataPolicy
from twofold_avro.shapes import ColumnShape, TableShape, TypeShape

EXAMPLE = Path(__file__).parents[3] / "docs/reference/twofold.toml"


def type_(name: str) -> TypeShape:
    return TypeShape(0, "pg_catalog", name)


EMAIL = TypeShape(1, "public", "email", "domain", element=type_("text"))
SHAPE = TableShape(
    1,
    "public",
    "t",
    (
        ColumnShape("id", type_("int8"), in_key=True, in_identity=True),
        ColumnShape("email", EMAIL),
        ColumnShape("amount", type_("numeric")),
    ),
)


def apply(monkeypatch: pytest.MonkeyPatch, *rules: tuple[str, str], loads: bool = True) -> TableShape:
    columns = [{"column": column, "action": action} for column, action in rules]
    monkeypatch.setenv("TWOFOLD_POLICY__COLUMNS", json.dumps(columns))
    monkeypatch.setenv("TWOFOLD_SOURCE__BACKFILL", str(loads).lower())
    return DataPolicy(load(EXAMPLE)).apply(SHAPE)


def test_policy_is_that_of_the_first_rule_that_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    found = apply(monkeypatch, ("public.t.amount", "keep"), ("other.*.email", "drop"), ("public.*.[ae]m*", "hash"))
    assert found.policy == {"email": "hash"}
    assert [c.type.name for c in found.columns] == ["int8", "text", "numeric"]
    assert apply(monkeypatch, ("public.*.email", "redact")).policy == {"email": "redact"}
    assert apply(monkeypatch) == SHAPE


@pytest.mark.parametrize(
    ("column", "action", "said"),
    [
        ("id", "drop", "can only be hashed"),
        ("id", "null", "can only be hashed"),
        ("id", "redact", "can only be hashed"),
        ("id", "hash", "cannot be loaded in the order of a hash"),
        ("amount", "redact", "type numeric, which has no text to redact"),
    ],
)
def test_policy_that_cannot_hold_is_refused(
    monkeypatch: pytest.MonkeyPatch, column: str, action: str, said: str
) -> None:
    with pytest.raises(Refused, match=said) as refused:
        apply(monkeypatch, (f"public.t.{column}", action))
    assert "nothing was written" in refused.value.at_stake


def test_policy_hashes_a_key_that_is_never_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert apply(monkeypatch, ("public.t.id", "hash"), loads=False).policy == {"id": "hash"}


def test_policy_of_a_column_names_schema_and_table(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"must be schema\.table\.column"):
        apply(monkeypatch, ("t.email", "hash"))


def test_policy_needs_a_key_that_is_long_enough(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TWOFOLD_POLICY__COLUMNS", '[{"column": "public.t.email", "action": "hash"}]')
    with pytest.raises(UsageError, match=r"policy\.key_file is not set; .*openssl rand"):
        _ = load(EXAMPLE).policy.hash_key
    file = tmp_path / "key"
    monkeypatch.setenv("TWOFOLD_POLICY__KEY_FILE", str(file))
    with pytest.raises(UsageError, match="cannot be read"):
        _ = load(EXAMPLE).policy.hash_key
    file.write_bytes(b"k" * 31 + b"\n")
    with pytest.raises(UsageError, match="has 31 bytes, fewer than 32"):
        _ = load(EXAMPLE).policy.hash_key
    file.write_bytes(b"k" * 32 + b"\n")
    assert load(EXAMPLE).policy.hash_key == b"k" * 32
    monkeypatch.setenv("TWOFOLD_POLICY__COLUMNS", '[{"column": "public.t.email", "action": "drop"}]')
    assert load(EXAMPLE).policy.hash_key == b""
