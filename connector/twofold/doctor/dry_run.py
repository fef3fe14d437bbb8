"""`twofold init --dry-run`: what `init` would create, and what doctor would say of it.

The publication is created in a transaction that is rolled back, so that PostgreSQL itself says
which tables it has. Nothing else is written anywhere.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field, replace

from twofold.config import Config
from twofold.doctor import examine, outbox, policy
from twofold.doctor.finding import Finder, Finding, Severity
from twofold.doctor.tables import published
from twofold.errors import TwofoldError
from twofold.kafka.kafka_settings import bookkeeping, kafka_settings, topic_policy
from twofold.kafka.topics import Topics
from twofold.run.source_settings import wanted_publication
from twofold.source import ddl_messages, identity, readiness
from twofold.source.catalog import Catalog
from twofold.source.load_estimates import table_sizes
from twofold.source.provisioning import as_if_created
from twofold.source.published_tables import publication_exists
from twofold_avro.names import topic_of
from twofold_common.printable import counted
from twofold_common.table_names import table_argument

_finding = Finder("postgresql")


@dataclass(frozen=True, slots=True)
class PlannedTable:
    """A table that would be published."""

    table: str
    topic: str
    """Empty for an outbox: its events name their topics."""
    key: tuple[str, ...]
    rows: int | None
    """The planner's estimate; None if the role may not read the table, or it is locked."""


@dataclass(slots=True)
class InitPlan:
    """The things that `init` would create, and its obstacles."""

    creates: list[str] = field(default_factory=list)
    there: list[str] = field(default_factory=list)
    """The parts that exist already."""
    tables: list[PlannedTable] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def note(self, what: str, *, is_there: bool) -> None:
        (self.there if is_there else self.creates).append(what)


def plan_init(config: Config) -> InitPlan:
    """Look at everything that `init` looks at, and change nothing."""
    plan = InitPlan(findings=list(examine(config)))
    try:
        _plan_source(config, plan)
        _plan_topics(config, plan)
    except TwofoldError as error:
        if not any(each.severity is Severity.MUST for each in plan.findings):
            plan.findings.append(_finding.must("init", str(error), "twofold init stops here", "see above"))
    plan.findings.sort(key=lambda each: each.severity)
    return plan


def _plan_source(config: Config, plan: InitPlan) -> None:
    with as_if_created(config.conninfo, config.publication, wanted_publication(config)) as (connection, is_there):
        sizes = table_sizes(connection, config.publication)
        relations = [each.relation for each in sizes]
        exists = publication_exists(connection, config.publication)
        if not (exists and is_there):
            plan.findings = [each for each in plan.findings if each.check != "publication"]
        if not exists:
            lack = readiness.lacks_publication(config.publication)
            plan.findings.append(_finding.must("publication", lack.what, "init refuses", lack.remedy))
        if not is_there:
            plan.findings += published(config, connection)
            plan.findings += outbox.examine(config, connection, relations)
            plan.findings += policy.find_idle_rules(config, relations)
    outboxes = {rule.name for rule in config.outbox}
    with closing(Catalog(config.conninfo)) as catalog:
        for size in sizes:
            each = size.relation
            is_outbox = (each.schema, each.table) in outboxes
            topic = "" if is_outbox else topic_of(config.prefix, each.schema, each.table)
            key = tuple(column.name for column in catalog.shape(each).key)
            plan.tables.append(PlannedTable(table_argument(each.schema, each.table), topic, key, size.rows))
    if exists:
        plan.note(f"publication {config.publication} of {counted(len(relations), 'table')}", is_there=is_there)
    slot = identity.slot_state(config.conninfo, config.slot)
    two_phase = "on" if config.source.two_phase else "off"
    plan.note(f"slot {config.slot} (two_phase {two_phase})", is_there=slot is not None)
    if slot is None:  # then init refuses a rule that matches nothing
        plan.findings = [
            replace(each, severity=Severity.MUST) if each.check == "policy_rule" else each for each in plan.findings
        ]
    if config.source.ddl_messages:
        plan.note("event triggers and schema twofold", is_there=not ddl_messages.flaws(config.conninfo))


def _plan_topics(config: Config, plan: InitPlan) -> None:
    partitions = {each.name: each.partitions for each in bookkeeping(config, pinned=False)}
    partitions |= {each.topic: config.kafka.partitions if each.key else 1 for each in plan.tables if each.topic}
    missing = Topics(kafka_settings(config), topic_policy(config)).missing(partitions)
    for topic, count in partitions.items():
        plan.note(f"topic {topic} ({counted(count, 'partition')})", is_there=topic not in missing)
