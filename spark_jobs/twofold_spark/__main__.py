"""`python -m twofold_spark`, and what spark-submit is given."""

from __future__ import annotations

import sys

from twofold_spark.cli import main

if __name__ == "__main__":
    sys.exit(main())
