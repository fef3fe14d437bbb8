"""What is asked of a server's version and wal_level, without a server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from twofold.doctor import postgres, settings
from twofold.doctor.finding import Severity
from twofold.source.readiness import NEWEST_TRIED, allows_decoding, version_advice


@pytest.mark.parametrize(
    ("wal_level", "effective", "allowed"),
    [
        ("logical", None, True),
        ("replica", None, False),
        ("minimal", None, False),
        ("logical", "logical", True),
        ("replica", "logical", True),
        ("replica", "replica", True),
        ("minimal", "minimal", False),
    ],
)
def test_from_19_on_a_slot_turns_on_what_decoding_needs(wal_level: str, effective: str | None, allowed: bool) -> None:
    assert allows_decoding(wal_level, effective) == allowed
    known = {"wal_level": wal_level, "effective_wal_level": effective}
    server = SimpleNamespace(settings={name: value for name, value in known.items() if value is not None})
    (rule,) = (rule for rule in settings.RULES if rule.setting == "wal_level")
    assert rule.broken(cast("Any", server)) != allowed


@pytest.mark.parametrize(
    ("version", "words"),
    [
        (150018, "PostgreSQL 15.18 has known bugs"),
        (150019, None),
        (180006, None),
        (190000, f"PostgreSQL 19 is newer than {NEWEST_TRIED}"),
        (200001, f"PostgreSQL 20 is newer than {NEWEST_TRIED}"),
    ],
)
def test_init_run_and_doctor_name_a_version_that_nobody_tried(version: int, words: str | None) -> None:
    advice = version_advice(version)
    assert [words in each.what and not each.must for each in advice if words] == [True] * len(advice)
    assert bool(advice) == (words is not None)
    found = list(postgres._version(cast("Any", SimpleNamespace(number=lambda _: version))))
    assert [words in each.what for each in found if words] == [True] * len(found) == [True] * len(advice)
    assert all((each.severity is Severity.SHOULD) == (version >= 190000) for each in found)
