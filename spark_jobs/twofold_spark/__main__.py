"""`twofold-spark`, `python -m twofold_spark`, and the script for spark-submit."""

from __future__ import annotations

import sys

_SETUP_ERROR = 3
"""Exit status of `errors.SetupError`, which cannot be imported without Spark."""


def main() -> int:
    try:
        from twofold_spark.job import cli  # noqa: PLC0415  (nothing of the jobs can be imported without Spark)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("pyspark", "py4j"):
            raise
        print(  # noqa: T201
            "twofold-spark: Spark is not installed for this Python: pip install 'twofold-spark[spark]', or use spark-submit",
            file=sys.stderr,
        )
        return _SETUP_ERROR
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
