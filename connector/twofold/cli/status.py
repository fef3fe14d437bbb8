"""`twofold status`."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from twofold.cli.terminal import say
from twofold.config import load
from twofold.errors import TwofoldError
from twofold_common.gids import describe
from twofold_common.positions import Lsn, format_lsn
from twofold_common.printable import counted, printable

if TYPE_CHECKING:
    from twofold.config import Config
    from twofold.inspect.in_doubt import HeldBack
    from twofold.inspect.status_report import BackfillStatus, Status
    from twofold.kafka.progress import RecoveredState
    from twofold.run.last_refusal import LastRefusal
    from twofold.watch.mirror_view import MirrorView
    from twofold.watch.page_client import PageAnswer
    from twofold_common.mirror_place import MirrorPlace

LOADS_MAX = 10
"""Number of loads that are named; `twofold backfill status` has all."""
MIRROR_QUIET_S = 60.0
"""A mirror tells every ten seconds that it runs, by another machine's clock."""


@click.command(
    help="""Show progress: positions, lag and its cause, who holds the slot, transactions in doubt, backfills, the mirror.

    Asks PostgreSQL and Kafka, so it works whether the connector runs or not. Changes nothing. PostgreSQL's answer is shown at once; if Kafka is away, status 4. Why a running connector is behind it asks the status page (status.listen).

    Example: twofold -c bank.toml status --live"""
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object; positions are numbers.")
@click.option("--live", is_flag=True, help="Show it again every two seconds, until Ctrl-C.")
@click.pass_obj
def command(config_file: Path | None, *, as_json: bool, live: bool) -> None:
    from twofold.cli.terminal import ended_at_once  # noqa: PLC0415
    from twofold.inspect.status_report import read_source_status  # noqa: PLC0415
    from twofold.watch.mirror_view import MirrorView  # noqa: PLC0415  (loads the clients)

    config = load(config_file)
    mirror = MirrorView(config)

    def report() -> str:
        source = read_source_status(config)
        lines = [*_source_lines(source), *_kafka_lines(_ask_kafka(config, source, mirror))]
        return "\n".join(map(printable, lines))

    if live:
        from rich.console import Console  # noqa: PLC0415

        from twofold.cli.live import show  # noqa: PLC0415

        show(report, Console(), threading.Event())
        return
    click.get_current_context().with_resource(ended_at_once())
    source = read_source_status(config)
    if not as_json:
        say(*_source_lines(source))
    seen = _ask_kafka(config, source, mirror)
    if as_json:
        click.echo(json.dumps(_as_json(seen), indent=2))
    else:
        say(*_kafka_lines(seen))
    if seen.kafka_error is not None:
        sys.exit(seen.kafka_error.exit_status)


@dataclass(frozen=True, slots=True)
class Seen:
    """The answers of PostgreSQL, Kafka and the connector's status page."""

    status: Status
    page: PageAnswer | None = None
    """From outside, WAL without a row counts as behind until the next progress record."""
    loads: Sequence[BackfillStatus] = ()
    mirror: MirrorPlace | None = None
    mirror_error: str | None = None
    kafka_error: TwofoldError | None = None
    refusal: LastRefusal | None = None
    """Why it does not run, if it ended by itself or cannot start."""

    @property
    def mirror_gone_since(self) -> float | None:
        """When the mirror ended or was heard last, if it does not run."""
        place = self.mirror
        if self.page is not None and self.page.mirror_gone_since is not None:
            return self.page.mirror_gone_since
        if place is None or place.told_at is None:
            return None
        is_quiet = self.page is None and time.time() - place.told_at > MIRROR_QUIET_S
        return place.told_at if place.ended or is_quiet else None


def _ask_kafka(config: Config, source: Status, mirror: MirrorView) -> Seen:
    from twofold.inspect.status_report import backfills, read_progress_if_any, with_kafka  # noqa: PLC0415
    from twofold.run.last_refusal import recall  # noqa: PLC0415
    from twofold.watch.page_client import ask_page  # noqa: PLC0415  (loads the clients)

    page = ask_page(config) if source.confirmed_lsn is not None else None
    refusal = None if source.held_by_pid else recall(config, None)
    try:
        recovered = read_progress_if_any(config)
    except TwofoldError as error:
        return Seen(source, page, kafka_error=error, refusal=refusal)
    if not source.held_by_pid:
        refusal = gone(config, source, recovered) or recall(config, recovered)
    if recovered is None or source.initialised is False:
        return Seen(source, page, refusal=refusal)
    status = with_kafka(config, source, recovered)
    if page is not None and page.behind_bytes is not None and status.held_by_pid:
        status = replace(status, behind_bytes=page.behind_bytes)
    loads = backfills(config, recovered)
    try:
        place, why = mirror.read() if status.initialised else None, None
    except TwofoldError as error:  # only the mirror's own line is lost
        place, why = None, str(error)
    return Seen(status, page, loads, place, why, refusal=refusal)


def gone(config: Config, source: Status, recovered: RecoveredState | None) -> LastRefusal | None:
    """Return what `run` would say of a slot that is gone; None if there is one, or never was."""
    from twofold.inspect.checks import slot_gone  # noqa: PLC0415
    from twofold.run.last_refusal import LastRefusal  # noqa: PLC0415

    progress = recovered.progress if recovered else None
    if source.confirmed_lsn is not None or progress is None or not progress.applied_lsn:
        return None
    return LastRefusal.of(slot_gone(config.slot, config.prefix, Lsn(progress.applied_lsn)))


def _as_json(seen: Seen) -> dict[str, Any]:
    return {
        **seen.status.to_json(),
        "backfills": [asdict(each) for each in seen.loads],
        "mirror": seen.mirror and asdict(seen.mirror),
        "mirror_error": seen.mirror_error,
        "mirror_gone_since": seen.mirror_gone_since,
        "behind_s": seen.page and seen.page.behind_s,
        "cause": (seen.page and seen.page.cause) or (seen.refusal and seen.refusal.what),
        "cause_since": seen.page.cause_since if seen.page else seen.refusal and seen.refusal.at,
        "refusal": seen.refusal and asdict(seen.refusal),
        "slow": seen.page and seen.page.slow,
        "kafka_error": seen.kafka_error and str(seen.kafka_error),
    }


def _source_lines(status: Status) -> list[str]:
    waits = [f"waits for   {holder}" for holder in status.waits_for]
    if status.initialised is False:
        return [f"connector   {status.name}, not running: slot {status.slot} does not exist", *waits]
    idle = "not running, or between two tries: nobody holds the slot"
    holder = f"running (walsender {status.held_by_pid})" if status.held_by_pid else idle
    return [
        f"connector   {status.name}, {holder}",
        f"source      {_lsn(status.source_lsn)}",
        f"confirmed   {_lsn(status.confirmed_lsn)}, slot {status.slot}, WAL {status.wal_status}",
        *waits,
        *_ddl_lines(status),
    ]


def _ddl_lines(status: Status) -> list[str]:
    """Whether the event triggers tell each change of a table's definition."""
    if status.ddl_flaws is None:
        return []
    said = "; ".join(status.ddl_flaws)
    return [f"triggers    {f'NOT TOLD: {said}; run: twofold init' if said else 'each change of a table is told'}"]


def _kafka_lines(seen: Seen) -> list[str]:
    status, refused = seen.status, _refusal_lines(seen.refusal)
    if seen.kafka_error is not None:
        why = printable(str(seen.kafka_error), lines=True).split("\n")
        why[0] = f"in Kafka    not known: {why[0]}"
        return [*refused, *why, *_page_lines(seen), *_in_doubt_lines(status)]
    if not status.initialised:
        return refused or [f"in Kafka    nothing: connector {status.name} is not initialised: run twofold init"]
    lines = [
        *refused,
        f"in Kafka    {_lsn(status.applied_lsn)}, commit record {status.sequence}, {_lag(seen)}",
        *_page_lines(seen),
        f"two_phase   {status.two_phase}",
    ]
    if seen.mirror_error is not None:
        lines.append(f"mirror      not known: {seen.mirror_error}")
    if seen.mirror is not None:
        lines.append(_mirror_line(seen, seen.mirror))
    lines += [f"backfill    {each.table}: {each.state}, {each.words}" for each in seen.loads[:LOADS_MAX]]
    if (more := len(seen.loads) - LOADS_MAX) > 0:
        lines.append(f"backfill    and {more} more tables: twofold backfill status")
    lines += [f"STALE       {each.table}: {each.reason}; run: {each.repair}" for each in status.stale]
    lines += [
        f"LACKS       {each.table}: {each.description}; once every row can be published, run: {each.repair}"
        for each in status.lacking
    ]
    return [*lines, *_in_doubt_lines(status)]


def _mirror_line(seen: Seen, place: MirrorPlace) -> str:
    behind, gone = max(0, (seen.status.sequence or 0) - place.sequence), seen.mirror_gone_since
    if place.reads_former(seen.status.stream_id):
        lag = "reads topics that were made again since"
    else:
        lag = f"{counted(behind, 'commit record')} behind" if behind else "up to date"
    return f"mirror      {_lsn(place.applied_lsn)}, commit record {place.sequence}, {lag}" + (
        f", not running since {_clock(gone)}" if gone is not None else ""
    )


def _refusal_lines(refusal: LastRefusal | None) -> list[str]:
    if refusal is None:
        return []
    return [
        f"refused     {refusal.clock}, status {refusal.exit_status}: {refusal.what}",
        f"  at stake: {refusal.at_stake}",
        f"  repair:   {refusal.repair}",
    ]


def _in_doubt_lines(status: Status) -> list[str]:
    if status.in_doubt_unknown:
        return [f"in doubt    not known: {status.in_doubt_unknown}"]
    lines = [f"in doubt    {len(status.in_doubt)}"]
    for each in status.in_doubt:
        lines.append(f"  {describe(each.gid)}  xid {each.xid}, {each.age_s:.0f} s, {each.in_kafka}, owner {each.owner}")
        if each.held_back:
            lines.append(
                f"    HOLDS BACK {', '.join(map(str, each.held_back))}, committed{_since(each.held_back)};"
                f" to end it, in database {each.database}: {each.ending}"
            )
        if each.too_long:
            lines.append(f"    TOO LONG (prepared.doubt_warning): {each.cost}; to end it: {each.ending}")
    return lines


def _lag(seen: Seen) -> str:
    exact = seen.page is not None and seen.page.behind_bytes is not None and seen.status.held_by_pid
    size = f"{'' if exact else 'at most '}{seen.status.behind_bytes:,} bytes of WAL behind"
    behind_s = seen.page.behind_s if seen.page is not None and exact else None
    return f"{size}, {behind_s:,.0f} s" if behind_s else size


def _page_lines(seen: Seen) -> list[str]:
    """Why it is behind, and why its rows are slow, as the running connector says."""
    if seen.page is None:
        return []
    since = "" if seen.page.cause_since is None else f" since {_clock(seen.page.cause_since)}"
    behind = [f"behind      {seen.page.cause}{since}"] if seen.page.cause else []
    return behind + ([f"slow        {seen.page.slow}"] if seen.page.slow else [])


def _clock(at: float) -> str:
    """The time of day, with the date if it is another day's."""
    then, today = time.localtime(at), time.localtime()
    return time.strftime("%H:%M:%S" if then[:3] == today[:3] else "%Y-%m-%d %H:%M:%S", then)


def _since(held_back: Sequence[HeldBack]) -> str:
    first = min((each.since for each in held_back if each.since is not None), default=None)
    return "" if first is None else f" at {_clock(first)}"


def _lsn(position: int | None) -> str:
    return "-" if position is None else format_lsn(position)
