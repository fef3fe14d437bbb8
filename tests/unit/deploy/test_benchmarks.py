"""The benchmarks that stand in for the product's surroundings must follow the product."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


def test_the_benchmark_of_prepared_transactions_runs_to_its_last_line() -> None:
    command = [sys.executable, str(BENCHMARKS / "prepared.py"), "300", "4"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout.splitlines()[-1])["us_per_prepared_transaction"]["4"]) == 3
