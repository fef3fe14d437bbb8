"""Checks the data policy against the published tables and what was registered of them: what a run
would refuse or warn of, and rules that hide nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing

from twofold.config import Config
from twofold.errors import Refused, SetupError, Unreachable
from twofold.ops.doctor.finding import Finding, Severity, finder
from twofold.runner.data_policy import DataPolicy
from twofold.runner.pins import former_pins
from twofold.runner.sink_settings import registry_settings
from twofold.runner.status_report import read_progress
from twofold.runner.subjects import Subjects, readable_rows
from twofold.sink.schema_registry import Registry
from twofold.source.catalog import Catalog
from twofold.source.connection import PlainConnection
from twofold.source.messages import Relation
from twofold.source.published_tables import published_in
from twofold_avro.names import topic_of
from twofold_avro.records import Pin
from twofold_avro.shapes import TableShape

_finding = finder("postgresql")
_PUBLISHED = "SELECT FROM pg_catalog.pg_publication WHERE pubname = %s"
_WILD = frozenset("*?[")


def examine(config: Config, connection: PlainConnection, *, initialised: bool) -> Iterator[Finding]:
    """Yield nothing without a policy, or before the publication exists.

    `initialised`: Kafka's record of the connector says what its tables are pinned to.
    """
    if not config.policy.columns or connection.execute(_PUBLISHED, (config.publication,)).fetchone() is None:
        return
    published = published_in(connection, config.publication)
    yield from _idle_rules(config, published)
    outboxes = {rule.name for rule in config.outbox}
    with closing(Catalog(config.conninfo)) as catalog:
        shapes = [catalog.shape(each) for each in published if (each.schema, each.table) not in outboxes]
    try:
        yield from _examine_tables(config, shapes, read_progress(config).pins if initialised else {})
    except (SetupError, Unreachable):
        return  # Kafka's and the registry's own parts say that they are away


def _examine_tables(config: Config, shapes: Iterable[TableShape], pins: Mapping[str, Pin]) -> Iterator[Finding]:
    policy = DataPolicy(config)
    subjects = Subjects(Registry(registry_settings(config)), config.prefix, policy.require_rules)
    for described in shapes:
        topic = topic_of(config.prefix, described.schema, described.table)
        try:
            shape = policy.apply(described)
            subjects.like_before(shape, topic, pins.get(topic))
            for former, pin in former_pins(pins, topic, shape.oid):
                subjects.require_former_rules(shape, former, pin)
        except Refused as refusal:
            yield _finding("policy", Severity.MUST, refusal.what, refusal.at_stake, refusal.repair)
            continue
        if shape.policy and (hidden := subjects.newly_hidden(shape, topic)):
            what, remedy = readable_rows(shape, topic, hidden)
            yield _finding(
                "policy_readable", Severity.SHOULD, what, "whoever may read the topic can read them", f"-- {remedy}"
            )


def _idle_rules(config: Config, published: Iterable[Relation]) -> Iterator[Finding]:
    """Check the rules that name one table: others may be meant for columns to come."""
    names = [f"{each.schema}.{each.table}.{column.name}" for each in published for column in each.columns]
    for rule in config.policy.columns:
        named = _WILD.isdisjoint(rule.column.rpartition(".")[0])
        if named and rule.action != "keep" and not any(map(rule.matches, names)):
            yield _finding(
                "policy_rule",
                Severity.SHOULD,
                f"the data policy's rule for {rule.column} ({rule.action}) matches no published column",
                "it hides nothing; a column that it was meant for has another name, and is published as it is",
                "-- correct or remove it in policy.columns",
            )
