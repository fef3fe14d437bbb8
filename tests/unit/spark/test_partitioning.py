"""`--partition-by` on the command line."""

from __future__ import annotations

import pytest

from twofold_spark.errors import UsageError
from twofold_spark.job.cli import main
from twofold_spark.sinks.partitioning import Transform, parse_partitioning

_LINE = ("mirror", "--bootstrap", "b", "--registry", "r", "--prefix", "p", "--warehouse", "lake")


def test_transforms_are_spark_s() -> None:
    table, transforms = parse_partitioning(
        "public.orders=bucket(16, id),truncate(4,name), days(created),month(at),region"
    )
    assert table == "public.orders"
    assert transforms == (
        Transform("bucket", "id", 16),
        Transform("truncate", "name", 4),
        Transform("day", "created"),
        Transform("month", "at"),
        Transform("identity", "region"),
    )


@pytest.mark.parametrize(
    "given",
    ["orders=region", "public.orders", "public.orders=", "a.b=bucket(id)", "a.b=bucket(0, id)", "a.b=days(x", "a.b=x,,y",
     "a.b=void(x)", "a.b=bucket(2147483648, x)", "a.b=x; DROP TABLE y"],
)  # fmt: skip
def test_a_form_that_is_none_is_refused(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main((*_LINE, "--partition-by", given))
    assert "must be" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (("--sink", "delta=x", "--partition-by", "a.b=c"), "--partition-by is for tables in Iceberg"),
        (("--partition-by", "a.b=c", "--partition-by", "a.b=d"), "--partition-by names a.b twice"),
    ],
)
def test_other_sinks_and_a_table_that_is_named_twice_are_refused(
    given: tuple[str, ...], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main((*_LINE, *given)) == UsageError.exit_status
    assert why in capsys.readouterr().err
