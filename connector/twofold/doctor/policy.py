"""Checks the data policy: what a run would refuse or warn of, and rules that hide nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing

from twofold.config import Config
from twofold.doctor.finding import Finder, Finding
from twofold.errors import Refused, SetupError, Unreachable, UsageError
from twofold.inspect.status_report import read_progress
from twofold.kafka.kafka_settings import open_registry
from twofold.kafka.subjects import Subjects, readable_rows
from twofold.outbox.outbox import require_shown
from twofold.source.catalog import Catalog
from twofold.source.messages import Relation
from twofold.tables.column_policy import ColumnPolicy
from twofold.tables.data_policy import DataPolicy
from twofold.tables.pins import former_pins
from twofold_avro.names import topic_of
from twofold_avro.records import Pin

_finding = Finder("postgresql")


def examine(config: Config, published: Iterable[Relation], *, initialised: bool) -> Iterator[Finding]:
    """Yield nothing without a policy.

    `initialised`: Kafka's record of the connector says what its tables are pinned to.
    """
    if not config.policy.columns:
        return
    yield from find_idle_rules(config, published)
    with closing(Catalog(config.conninfo)) as catalog:
        try:
            yield from _examine_tables(config, catalog, published, read_progress(config).pins if initialised else {})
        except (SetupError, Unreachable, UsageError):
            return  # Kafka's, the registry's and the machine's own parts say what is away


def _examine_tables(
    config: Config, catalog: Catalog, published: Iterable[Relation], pins: Mapping[str, Pin]
) -> Iterator[Finding]:
    rules = DataPolicy(config)
    policy = ColumnPolicy(rules, catalog, config.publication)
    subjects = Subjects(open_registry(config), config.prefix, rules.require_rules)
    outboxes = {rule.name: rule for rule in config.outbox}
    for relation in published:
        topic = topic_of(config.prefix, relation.schema, relation.table)
        try:
            shape, _ = policy.hide(catalog.shape(relation), relation, topic, pins)
            if outbox := outboxes.get((relation.schema, relation.table)):
                require_shown(outbox, shape)
                continue
            subjects.like_before(shape, topic, pins.get(topic))
            for former, pin in former_pins(pins, topic, shape.oid):
                subjects.require_former_rules(shape, former, pin)
        except Refused as refusal:
            yield _finding.must("policy", refusal.what, refusal.at_stake, refusal.repair)
            continue
        if shape.policy and (hidden := subjects.newly_hidden(shape, topic)):
            what, remedy = readable_rows(shape, topic, hidden)
            yield _finding.should("policy_readable", what, "whoever may read the topic can read them", f"-- {remedy}")


def find_idle_rules(config: Config, published: Iterable[Relation]) -> Iterator[Finding]:
    """Yield the rules that hide nothing of these tables."""
    with closing(Catalog(config.conninfo)) as catalog:
        idle = ColumnPolicy(DataPolicy(config), catalog, config.publication).idle_rules(published)
    for rule in idle:
        yield _finding.should(
            "policy_rule",
            f"the data policy's rule for {rule.column} ({rule.action}) matches no published column",
            "it hides nothing; a column that it was meant for has another name, and is published as it is",
            "-- correct or remove it in policy.columns",
        )
