"""What a user sets for Spark or for Kafka's client, and the jobs must not be changed by."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest
from pyspark.sql import SparkSession

from twofold_spark import session
from twofold_spark.errors import SetupError
from twofold_spark.sources import decoding
from twofold_spark.sources.kafka_client import Kafka
from twofold_spark.sources.registry import Subject

_TIME_ZONE = "spark.sql.session.timeZone"


def _check(settings: dict[str, str]) -> None:
    """Check a session with these settings, and with Spark's own otherwise."""
    session._check_session(cast("SparkSession", SimpleNamespace(conf=settings)))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"spark.sql.storeAssignmentPolicy": "strict"},
        {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"},
    ],
)
def test_a_session_that_changes_no_contents_is_used(settings: dict[str, str]) -> None:
    _check({_TIME_ZONE: "UTC", **settings})


@pytest.mark.parametrize(
    ("name", "value", "right"),
    [
        (_TIME_ZONE, "Europe/Berlin", "UTC"),
        ("spark.sql.parser.escapedStringLiterals", "true", "false"),
        ("spark.sql.timestampType", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ"),
        ("spark.sql.legacy.postgres.datetimeMapping.enabled", "true", "false"),
        ("spark.sql.storeAssignmentPolicy", "LEGACY", "ANSI"),
        ("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MILLIS", "INT96"),
        ("spark.sql.files.ignoreMissingFiles", "true", "false"),
        ("spark.sql.files.ignoreCorruptFiles", "true", "false"),
    ],
)
def test_a_setting_that_changes_contents_is_refused_with_the_right_one(name: str, value: str, right: str) -> None:
    with pytest.raises(SetupError) as refused:
        _check({_TIME_ZONE: "UTC", name: value})
    assert f"{name} is {value}" in str(refused.value)
    assert str(refused.value).endswith(f"submit with --conf {name}={right}")


def test_a_time_zone_that_nobody_set_is_the_machines() -> None:
    with pytest.raises(SetupError, match=r"timeZone is not set.*--conf spark\.sql\.session\.timeZone=UTC"):
        _check({})


def test_dates_are_those_of_the_records_whatever_the_session_says_of_avro(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session may say that Spark 2 wrote all Avro that it reads."""
    asked: list[dict[str, str]] = []

    def from_avro(_body: object, _writer: str, options: dict[str, str]) -> Any:
        asked.append(options)
        return mock.MagicMock()

    monkeypatch.setattr(decoding, "from_avro", from_avro)
    monkeypatch.setattr(decoding, "f", mock.MagicMock())
    decoding.decode_record(mock.MagicMock(), Subject("bank.t-key", ((1, {"type": "record"}), (2, {"type": "record"}))))
    assert [each["datetimeRebaseMode"] for each in asked] == ["CORRECTED", "CORRECTED"]


@pytest.mark.parametrize("client", [{}, {"allow.auto.create.topics": "true"}])
def test_no_read_lets_the_brokers_create_a_topic(client: dict[str, str]) -> None:
    """It would be there again, empty, after somebody has deleted it."""
    options = Kafka("kafka:9092", client).options("read_committed")
    assert options["kafka.allow.auto.create.topics"] == "false"


@pytest.mark.parametrize("settings", [{}, {"spark.sql.catalog.lake_east.cache-enabled": "true"}])
def test_a_catalog_that_caches_tables_is_refused(settings: dict[str, str]) -> None:
    """It is Iceberg's default."""
    conf = {"spark.sql.catalog.lake_east": "org.apache.iceberg.spark.SparkCatalog", **settings}
    users = cast("SparkSession", SimpleNamespace(conf=conf))
    with pytest.raises(SetupError, match=r"submit with --conf spark\.sql\.catalog\.lake_east\.cache-enabled=false$"):
        session.open_member_catalogs(users, "/lake", "lake", ("east",))
    conf["spark.sql.catalog.lake_east.cache-enabled"] = "false"
    session.open_member_catalogs(users, "/lake", "lake", ("east",))


def test_members_whose_tables_would_be_in_one_catalog_are_refused() -> None:
    users = cast("SparkSession", SimpleNamespace(conf={}))
    with pytest.raises(SetupError, match=r"of bank-a and bank_a would be in one Iceberg catalog, lake_bank_a, "):
        session.open_member_catalogs(users, "/lake", "lake", ("bank-a", "other", "bank_a"))
