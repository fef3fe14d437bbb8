"""`twofold audit`: compare the commit records with the rows that consumers get, and name the
repair.

Reads Kafka and the registry. Asks PostgreSQL nothing and changes nothing.

Damage before a table's last reload is past: a reader who starts at the reload, or folds the topic
by key, has the source's table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from twofold.config import Config
from twofold.descriptions.staleness import AWAY
from twofold.errors import Refused
from twofold.inspect.checks import check_commits
from twofold.inspect.comparison import (
    ComparisonResult,
    ComparisonScope,
    Reload,
    ReportProgress,
    SequenceBreak,
    compare,
    find_lost,
)
from twofold.kafka.decoding import Decoder
from twofold.kafka.kafka_settings import kafka_settings, names_of, open_registry
from twofold.kafka.metadata import ask_brokers
from twofold.kafka.names import Names
from twofold.kafka.progress import ProgressReader, RecoveredState
from twofold.kafka.tally import Damage
from twofold.kafka.topic_reader import TopicReader
from twofold_avro.records import Pin
from twofold_common.positions import format_lsn
from twofold_common.printable import counted
from twofold_common.table_names import table_argument


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """A damage, and its place."""

    partition: int
    damage: Damage

    @property
    def description(self) -> str:
        return f"partition {self.partition}, {self.damage.description}"


@dataclass(frozen=True, slots=True)
class DamageReport:
    """A damage as a person must know it, in the three parts of a refusal."""

    what: str
    at_stake: str
    repair: str

    @property
    def refusal(self) -> Refused:
        return Refused(self.what, at_stake=self.at_stake, repair=self.repair)


@dataclass(frozen=True, slots=True)
class TopicAudit:
    """The result for one topic with rows."""

    topic: str
    table: str | None
    """`schema.table`; None if the connector knows no table of this topic."""
    rows: int
    ranges: int
    unjudged_ranges: int
    """Ranges that retention removed in part, or that reach beyond the last offset that was read."""
    unjudged_rows: int
    """Rows older than all commit records that are judged."""
    unjudged_offsets: int
    """Offsets of open transactions, and offsets behind one."""
    damages: tuple[AuditFinding, ...]
    past: tuple[AuditFinding, ...]
    """Damage before the last reload."""
    more: int
    """Damages that were counted and are not listed."""
    reload: int | None
    """The commit record of the last reload."""
    loading: bool
    lacks: tuple[str, ...] = ()
    """The positions of rows that the topic lacks because a person had them skipped."""

    @property
    def description(self) -> str:
        words = f"{counted(self.rows, 'row')} in {counted(self.ranges, 'range')}"
        if self.damages:
            words += f": DAMAGED in {counted(len(self.damages) + self.more, 'place')}"
        elif self.past:
            doing = "repairs" if self.loading else "repaired"
            words += f": whole now; the reload at commit record {self.reload} {doing} the damage before it ({counted(len(self.past), 'place')})"
        else:
            words += ": whole"
        for many, what in (
            (self.unjudged_ranges, "ranges not judged: retention has taken them, or they are still being written"),
            (self.unjudged_rows, "rows not judged: their commit records are not kept, or not asked for"),
            (self.unjudged_offsets, "offsets not judged: a transaction is open there"),
        ):
            words += f"; {many} {what}" if many else ""
        if self.lacks:
            words += f"; lacks {counted(len(self.lacks), 'row')} that a person had skipped, a known difference: at {', '.join(self.lacks)}"
        return words


@dataclass(frozen=True, slots=True)
class Audit:
    """The result for a prefix."""

    prefix: str
    commits: int
    first_sequence: int | None
    last_sequence: int | None
    topics: tuple[TopicAudit, ...]
    gone: Mapping[str, int]
    """Topics of which commit records name partitions that no longer exist, with the number of their
    ranges.
    """
    breaks: tuple[tuple[int, int], ...]
    """Neighbouring commit records without consecutive numbers, or of two streams, and without a
    later reload of all tables.
    """
    troubles: tuple[DamageReport, ...]
    """One report for each topic that is damaged or gone, and one for the numbers."""


def audit(config: Config, *, since: int, report: ReportProgress) -> Audit:
    """Read and judge everything that Kafka keeps, or everything after commit record `since`."""
    settings, names, registry = kafka_settings(config), names_of(config), open_registry(config)
    ask_brokers(settings)
    reader = TopicReader(settings)
    progress = ProgressReader(reader, names, registry)
    before = progress.read()
    scope = ComparisonScope(frozenset({*before.pins, names.messages}), since)
    compared = compare(reader, Decoder(registry), names, scope, report)
    find_lost(reader, compared)
    found = judge(compared, names, before.pins)
    apart = _apart(before, progress.read(), names)
    return replace(found, troubles=(*found.troubles, apart)) if apart else found


def judge(compared: ComparisonResult, names: Names, pins: Mapping[str, Pin]) -> Audit:
    """Say what each topic's damage means, and how to repair it."""
    tables = {topic: table_argument(pin.schema, pin.table) for topic, pin in pins.items()}
    topics = sorted({place.topic for place in compared.tallies})
    audits = tuple(_topic(topic, compared, tables.get(topic), pins.get(topic)) for topic in topics)
    breaks = [each for each in compared.breaks if not _all_reloaded(each.found, tables, compared.reloads)]
    last = compared.last_sequence or 0
    troubles = [trouble_of(each.topic, each.damages, names, each.table, last) for each in audits if each.damages]
    troubles += [
        _gone_trouble(topic, many, tables[topic])
        for topic, many in compared.gone.items()
        if topic in pins and pins[topic].stored != AWAY and not pins[topic].is_passed_over
    ]
    if breaks:
        troubles.append(_break_trouble(names, breaks, tables.values()))
    return Audit(
        prefix=names.prefix,
        commits=compared.commits,
        first_sequence=compared.first_sequence,
        last_sequence=compared.last_sequence,
        topics=audits,
        gone=compared.gone,
        breaks=tuple((each.before, each.found) for each in breaks),
        troubles=tuple(troubles),
    )


def _apart(before: RecoveredState, after: RecoveredState, names: Names) -> DamageReport | None:
    """Whether commit records and progress contradict each other.

    A running connector may commit between the two readings; the progress is then newer.
    """
    if after.progress is None or after.progress != before.progress:
        return None
    try:
        check_commits(after, after.progress, names.prefix)
    except Refused as refusal:
        return DamageReport(refusal.what, refusal.at_stake, refusal.repair)
    return None


def _topic(topic: str, compared: ComparisonResult, table: str | None, pin: Pin | None) -> TopicAudit:
    tallies = {place: tally for place, tally in compared.tallies.items() if place.topic == topic}
    reload = compared.reloads.get(topic)
    found = [AuditFinding(place.partition, d) for place, tally in tallies.items() for d in tally.damages]
    past = tuple(each for each in found if _is_past(each.partition, each.damage.last, reload))
    damages = tuple(each for each in found if each not in past)
    more = sum(t.dropped for p, t in tallies.items() if not _is_past(p.partition, t.dropped_to, reload))
    return TopicAudit(
        topic=topic,
        table=table,
        rows=sum(tally.rows for tally in tallies.values()),
        ranges=sum(tally.ranges for tally in tallies.values()),
        unjudged_ranges=sum(tally.unjudged_ranges for tally in tallies.values()),
        unjudged_rows=sum(tally.unknown for tally in tallies.values()),
        unjudged_offsets=sum(compared.bounds[place].high - compared.bounds[place].stable for place in tallies),
        damages=damages,
        past=past,
        more=more,
        reload=reload.sequence if reload else None,
        loading=topic in compared.backfilling,
        lacks=tuple(format_lsn(row.lsn) for row in pin.skipped) if pin else (),
    )


def trouble_of(
    topic: str, damages: Iterable[AuditFinding], names: Names, table: str | None, last_sequence: int
) -> DamageReport:
    """Say what a topic's damage means to its readers."""
    found = list(damages)
    stakes = {
        "short": "rows that PostgreSQL has committed are missing for every reader of the topic",
        "unexpected": "readers have rows that PostgreSQL rolled back, or rows twice",
        "surplus": "readers have rows twice, or rows that PostgreSQL rolled back",
        "overlap": "two transactions' rows lie among each other, so no reader can tell which rows belong together",
    }
    kinds = [stakes[kind] for kind in stakes if any(each.damage.kind == kind for each in found)]
    return DamageReport(
        f"{topic}: {_several([each.description for each in found])}",
        at_stake="; ".join(kinds),
        repair=repair(topic, names, table, last_sequence),
    )


def _gone_trouble(topic: str, ranges: int, table: str) -> DamageReport:
    """Say that a published table's topic is gone: who unpublishes a table may delete its topic."""
    return DamageReport(
        f"{topic}: commit records name {counted(ranges, 'range')} in partitions that no longer exist",
        at_stake="the topic was deleted: its rows are lost to every consumer that had not read them",
        repair=f"twofold backfill start {table}",
    )


def repair(topic: str, names: Names, table: str | None, last_sequence: int) -> str:
    """Return the command after which the topic's readers agree with the source again."""
    if table is not None:
        return f"twofold backfill start {table}"
    accept = f"`twofold audit --since {last_sequence}` then judges only what comes later"
    if names.is_loaded_from_none(topic):
        return f"none: no table keeps messages and events, so nothing brings them again; tell their readers of these offsets; {accept}"
    return f"none: no published table has this topic; tell its readers of these offsets, or delete the topic; {accept}"


def _is_past(partition: int, last: int, reload: Reload | None) -> bool:
    return reload is not None and last < reload.firsts.get(partition, 0)


def _all_reloaded(sequence: int, topics: Iterable[str], reloads: Mapping[str, Reload]) -> bool:
    return all(topic in reloads and reloads[topic].sequence > sequence for topic in topics)


def _break_trouble(names: Names, breaks: Iterable[SequenceBreak], tables: Iterable[str]) -> DamageReport:
    words = [f"number {each.found} follows number {each.before}: {_cause_of(each)}" for each in breaks]
    return DamageReport(
        f"{names.commits}: {_several(words)}",
        at_stake="which rows of which tables belong to the missing commit records is not known, or a mirror would apply one twice",
        repair=f"twofold backfill start {' '.join(sorted(tables))}",
    )


def _cause_of(found: SequenceBreak) -> str:
    if found.other_stream:
        return "it belongs to another stream, which a later init began"
    return "some are missing" if found.found > found.before else "it came again"


def _several(words: list[str]) -> str:
    """Return the first few, and the number of the others."""
    return words[0] + (f" (and {len(words) - 1} more)" if len(words) > 1 else "")
