"""A job does not begin over Spark Connect, however a person asks for it."""

from __future__ import annotations

import pytest

from twofold_spark.job import cli

_VERIFY = ("verify", "--source", "host=nowhere.invalid dbname=shop", "--prefix", "shop")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SPARK_REMOTE", "sc://nowhere.invalid:15002"),
        ("SPARK_REMOTE", "local[2]"),
        ("SPARK_API_MODE", "connect"),
        # A session of Connect exists.
        ("SPARK_CONNECT_MODE_ENABLED", "1"),
    ],
)
def test_spark_connect_is_refused_with_what_to_do(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: object
) -> None:
    monkeypatch.setenv(variable, value)
    assert cli.main([*_VERIFY, "--warehouse", str(tmp_path)]) == 3
    said = capsys.readouterr().err
    assert "the jobs do not run over Spark Connect" in said
    assert "by spark-submit" in said
