"""Log lines for people, or JSON for machines.

A line says what happened and where, never what a row holds: it is made of names, positions and
counts.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Literal

from twofold.errors import Refused, TwofoldError
from twofold_common.printable import TextLines, printable_json

FIELDS = "fields"
"""The attribute of a log record that has further fields of its line."""


class JsonLines(logging.Formatter):
    """Formats each log record as a JSON object on one line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "thread": record.threadName,
            "message": record.getMessage(),
        }
        line |= record.__dict__.get(FIELDS, {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return printable_json(json.dumps(line, ensure_ascii=False))


def set_up(form: Literal["text", "json"], level: str) -> None:
    """Send log lines to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonLines() if form == "json" else TextLines("%(asctime)s %(levelname)s %(name)s: %(message)s")
    )
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(capture=True)
    logging.getLogger("httpx2").setLevel(logging.WARNING)


@contextmanager
def last_line_as_json() -> Iterator[None]:
    """Log the error that ends the process as one object, with its parts as fields."""
    log = logging.getLogger("twofold")
    try:
        yield
    except TwofoldError as error:
        fields = {"error": type(error).__name__, "exit_status": error.exit_status}
        what = str(error)
        if isinstance(error, Refused):
            what = error.what
            fields |= {"at_stake": error.at_stake, "repair": error.repair}
        log.error(what, extra={FIELDS: fields})  # noqa: TRY400  (raised on purpose: no traceback)
        sys.exit(error.exit_status)
    except Exception as error:
        log.critical("unforeseen error: %s", error, exc_info=True, extra={FIELDS: {"exit_status": 1}})
        sys.exit(1)
