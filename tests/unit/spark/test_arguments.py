"""What the command line takes, and what it refuses before Spark starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from twofold_spark import session
from twofold_spark.errors import UsageError
from twofold_spark.job.arguments import build_parser
from twofold_spark.job.cli import main

_LINE = ("mirror", "--bootstrap", "b", "--registry", "r", "--prefix", "p")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name in ("--maintain-every", "--batch-rows", "--batch-bytes") for value in ("0", "-1", "1e3", "x")),
        *(("--keep-cuts", value) for value in ("-1", "nan", "inf", "1e99", "x")),
        *(("--global-wait", value) for value in ("0", "-1", "nan", "inf", "x")),
        *(("--metrics", value) for value in ("127.0.0.1:99999", "127.0.0.1:0", "127.0.0.1", "host:")),
    ],
)  # fmt: skip
def test_a_value_that_makes_no_sense_is_refused(name: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        build_parser().parse_args((*_LINE, "--warehouse", "lake", f"{name}={value}"))
    assert f"argument {name}: '{value}' must be" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (("--prefix", "p"), "--global-wait is for a source group"),
        (("--prefix", "q", "--trigger", "available-now"), "--global-wait needs a job that stays"),
    ],
)
def test_a_limit_for_waiting_needs_a_group_and_a_job_that_stays(
    given: tuple[str, ...], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main((*_LINE, "--warehouse", "lake", "--global-wait", "30", *given)) == UsageError.exit_status
    assert why in capsys.readouterr().err


@pytest.mark.parametrize("given", [(), ("--prefix", "p", "--source-group", "bank")])
def test_a_mirror_has_prefixes_or_a_source_group(given: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        build_parser().parse_args(("mirror", "--bootstrap", "b", "--registry", "r", "--warehouse", "lake", *given))
    assert "--source-group" in capsys.readouterr().err


def test_a_warehouse_is_a_folder_by_its_whole_path_or_a_place_as_spark_knows_it() -> None:
    places = {
        "lake": str(Path.cwd() / "lake"),
        "/lake": "/lake",
        "s3a://bucket/lake": "s3a://bucket/lake",
        "hdfs://name:8020/lake": "hdfs://name:8020/lake",
    }
    assert {given: build_parser().parse_args((*_LINE, "--warehouse", given)).warehouse for given in places} == places


def test_the_jobs_own_catalog_is_refused_where_there_is_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    with pytest.raises(UsageError, match=r"--warehouse s3a://bucket/lake must be .* use spark-submit"):
        session.open_session("s3a://bucket/lake")
