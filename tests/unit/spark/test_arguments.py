"""What the command line takes, and what it refuses before Spark starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from twofold_spark import object_store, session
from twofold_spark.catalog_choice import WAREHOUSE_CATALOG, CatalogChoice
from twofold_spark.errors import UsageError
from twofold_spark.job.arguments import build_parser
from twofold_spark.job.running import choose_sharding

_LINE = ("mirror", "--bootstrap", "b", "--registry", "r", "--prefix", "p")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name in ("--maintain-every", "--batch-rows", "--batch-bytes") for value in ("0", "-1", "1e3", "x")),
        *(("--keep-cuts", value) for value in ("-1", "nan", "inf", "1e99", "x")),
        *(("--memory", value) for value in ("512", "1gb", "511m", "0.5g", "-1g", "x")),
        *(("--metrics", value) for value in ("127.0.0.1:99999", "127.0.0.1:0", "127.0.0.1", "host:")),
    ],
)  # fmt: skip
def test_a_value_that_makes_no_sense_is_refused(name: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        build_parser().parse_args((*_LINE, "--warehouse", "lake", f"{name}={value}"))
    assert f"argument {name}: '{value}' must be" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["mirror", "changelog"])
@pytest.mark.parametrize("given", [(), ("--prefix", "p", "--source-group", "bank")])
def test_a_job_has_prefixes_or_a_source_group(
    command: str, given: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        build_parser().parse_args((command, "--bootstrap", "b", "--registry", "r", "--warehouse", "lake", *given))
    assert "--source-group" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["mirror", "changelog"])
def test_sharded_tables_are_a_groups(command: str) -> None:
    given = build_parser().parse_args((command, *_LINE[1:], "--warehouse", "lake", "--sharded", "public.*"))
    with pytest.raises(UsageError, match="is for the members of a source group"):
        choose_sharding(given, ["p"])
    assert choose_sharding(given, ["p", "q"]).covers("public.accounts")


def test_a_warehouse_is_a_folder_by_its_whole_path_or_a_place_as_spark_knows_it() -> None:
    places = {
        "lake": str(Path.cwd() / "lake"),
        "/lake": "/lake",
        "s3a://bucket/lake": "s3a://bucket/lake",
        "hdfs://name:8020/lake": "hdfs://name:8020/lake",
    }
    assert {given: build_parser().parse_args((*_LINE, "--warehouse", given)).warehouse for given in places} == places


_REST = CatalogChoice.choose(None, "http://catalog", None)


@pytest.mark.parametrize(
    ("warehouse", "choice", "checkpoint", "message"),
    [
        ("s3://lake", WAREHOUSE_CATALOG, None, "--warehouse s3://lake needs a catalog, .*: add --catalog-uri"),
        ("s3://lake", _REST, "/folder", "--checkpoint /folder must be in S3"),
        ("/lake", _REST, "s3://lake/c", "--checkpoint s3://lake/c must be a folder"),
        ("gs://lake", _REST, None, "--warehouse gs://lake must be .* use spark-submit"),
    ],
)
def test_a_warehouse_that_the_jobs_own_session_cannot_use_is_refused(
    monkeypatch: pytest.MonkeyPatch, warehouse: str, choice: CatalogChoice, checkpoint: str | None, message: str
) -> None:
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    with pytest.raises(UsageError, match=message):
        session.open_session(warehouse, choice=choice, checkpoint=checkpoint)


def test_both_clients_of_s3_are_told_what_the_catalogs_file_says() -> None:
    file = {
        "s3.endpoint": "http://store:9000",
        "s3.path-style-access": "true",
        "s3.secret-access-key": "x",
        "token": "t",
    }
    settings = object_store.list_catalog_settings("c", file)
    assert settings["spark.sql.catalog.c.io-impl"] == "org.apache.iceberg.aws.s3.S3FileIO"
    assert object_store.list_hadoop_credentials(file) == {
        "fs.s3a.endpoint": "http://store:9000",
        "fs.s3a.path.style.access": "true",
        "fs.s3a.secret.key": "x",
    }
    own = object_store.list_catalog_settings("c", {"io-impl": "mine"})
    assert own["spark.sql.catalog.c.io-impl"] == "mine"
