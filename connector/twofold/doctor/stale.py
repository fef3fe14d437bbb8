"""Names tables whose topics may lack what PostgreSQL did not send, by the connector's pins."""

from __future__ import annotations

from collections.abc import Iterator

from twofold.config import Config
from twofold.doctor.finding import Finding, Severity, finder
from twofold.errors import TwofoldError
from twofold.inspect.status_report import read_progress, stale_tables

_finding = finder("postgresql")


def examine(config: Config) -> Iterator[Finding]:
    """Yield nothing where Kafka's records cannot be read: Kafka's own part says why."""
    try:
        recovered = read_progress(config)
    except TwofoldError:
        return
    for each in stale_tables(recovered):
        yield _finding(
            "stale",
            Severity.SHOULD,
            f"the topic of table {each.table} may be stale: {each.reason}",
            "its readers, and every mirror, may have rows that the table does not have",
            each.repair,
        )
