"""The table for people and the JSON for machines."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from bench.cases import Case
from bench.drain import Sample

RESULTS = Path(__file__).parent.parent / "results"

_COLUMNS: tuple[tuple[str, str, Callable[[Sample], float], str], ...] = (
    ("rows_per_s", "rows/s", lambda s: s.rows_per_s, ",.0f"),
    ("cpu_s_per_million", "CPU s/M", lambda s: s.cpu_per_million(s.connector_cpu_s), ".1f"),
    ("broker_cpu_s_per_million", "broker", lambda s: s.cpu_per_million(s.broker_cpu_s), ".1f"),
    ("walsender_cpu_s_per_million", "walsender", lambda s: s.cpu_per_million(s.walsender_cpu_s), ".1f"),
    ("first_s", "first s", lambda s: s.first_s, ".1f"),
    ("peak_mb", "peak MB", lambda s: s.peak_mb, ".0f"),
    ("kafka_bytes_per_row", "B/row", lambda s: s.kafka_bytes / s.rows, ".0f"),
)


def summary(samples: Sequence[Sample]) -> dict[str, dict[str, dict[str, float]]]:
    """By system and measure: median, least and most; and each system's speed beside the others'."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for system in dict.fromkeys(s.system for s in samples):
        own = [s for s in samples if s.system == system]
        found[system] = {}
        for name, _, measure, _ in _COLUMNS:
            values = [measure(s) for s in own]
            found[system][name] = {"median": median(values), "least": min(values), "most": max(values)}
    for other in found.copy():
        for measures in found.values():
            mine, theirs = measures["rows_per_s"]["median"], found[other]["rows_per_s"]["median"]
            measures.setdefault("speed_against", {})[other] = mine / theirs
    return found


def table(case: Case, samples: Sequence[Sample]) -> str:
    """The medians, and beneath each its range."""
    lines = [f"({case.letter}) {case.title}: {samples[0].rows:,} rows, {_rounds(samples)} rounds"]
    lines.append(f"{'':16}" + "".join(f"{head:>22}" for _, head, _, _ in _COLUMNS) + f"{'of the source':>16}")
    for system, measures in summary(samples).items():
        cells = []
        for name, _, _, form in _COLUMNS:
            value = measures[name]
            cells.append(f"{value['median']:{form}} ({value['least']:{form}}-{value['most']:{form}})")
        share = measures["speed_against"].get("pg_recvlogical") or measures["speed_against"].get("copy")
        lines.append(f"{system:16}" + "".join(f"{cell:>22}" for cell in cells) + (f"{share:>16.2f}" if share else ""))
    return "\n".join(lines)


def write(kind: str, body: dict[str, Any]) -> Path:
    """The file, named by the time; with what the machine was like."""
    RESULTS.mkdir(exist_ok=True)
    place = RESULTS / f"{kind}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.json"
    place.write_text(json.dumps({"machine": machine(), **body}, indent=1) + "\n")
    return place


def cases_body(results: Sequence[tuple[Case, Sequence[Sample]]]) -> dict[str, Any]:
    return {
        "cases": [
            {
                "case": case.letter,
                "title": case.title,
                "summary": summary(samples),
                "samples": [asdict(sample) for sample in samples],
            }
            for case, samples in results
        ]
    }


def machine() -> dict[str, Any]:
    return {"cores": os.cpu_count(), "load": os.getloadavg(), "kernel": platform.release(), "arch": platform.machine()}


def _rounds(samples: Sequence[Sample]) -> int:
    return sum(s.system == samples[0].system for s in samples)
