"""What the command line takes, and what it refuses before Spark starts."""

from __future__ import annotations

import pytest

from twofold_spark.arguments import parser

_LINE = ("mirror", "--bootstrap", "b", "--registry", "r", "--prefix", "p")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name in ("--maintain-every", "--batch-rows", "--batch-bytes") for value in ("0", "-1", "1e3", "x")),
        *(("--keep-cuts", value) for value in ("-1", "nan", "inf", "1e99", "x")),
        *(("--metrics", value) for value in ("127.0.0.1:99999", "127.0.0.1:0", "127.0.0.1", "host:")),
    ],
)  # fmt: skip
def test_a_value_that_makes_no_sense_is_refused(name: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parser().parse_args((*_LINE, "--warehouse", "lake", f"{name}={value}"))
    assert f"argument {name}: '{value}' is" in capsys.readouterr().err
