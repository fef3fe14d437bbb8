"""Checks the outboxes: whether their tables are published with the named columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from twofold.config import Config, OutboxRule
from twofold.doctor.finding import Finder, Finding
from twofold.source.connection import PlainConnection
from twofold.source.messages import Relation
from twofold_common.table_names import sql_identifier

_finding = Finder("postgresql")
_NULLABLE = """
SELECT FROM pg_catalog.pg_attribute a
  JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = %s AND c.relname = %s AND a.attname = %s AND NOT a.attnotnull
"""
_BY_PARTITIONS = """
SELECT FROM pg_catalog.pg_class c
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_catalog.pg_publication p ON p.pubname = %s AND NOT p.pubviaroot
 WHERE n.nspname = %s AND c.relname = %s AND c.relkind = 'p'
"""


def examine(config: Config, connection: PlainConnection, published: Iterable[Relation]) -> Iterator[Finding]:
    """Check each outbox with a table."""
    columns = {(each.schema, each.table): [column.name for column in each.columns] for each in published}
    for rule in config.outbox:
        if rule.name is not None:
            yield from _examine_table(config, connection, rule, rule.name, columns.get(rule.name))


def _examine_table(
    config: Config, connection: PlainConnection, rule: OutboxRule, name: tuple[str, str], columns: list[str] | None
) -> Iterator[Finding]:
    table = sql_identifier(*name)
    if columns is None:
        publication = sql_identifier(config.publication)
        by_partitions = connection.execute(_BY_PARTITIONS, (config.publication, *name)).fetchone() is not None
        how = "SET (publish_via_partition_root = true)" if by_partitions else f"ADD TABLE {table}"
        yield _finding.must(
            "outbox_unpublished",
            f"the outbox {rule.table} is not in publication {config.publication}",
            "its events are not sent, and twofold run refuses",
            f"ALTER PUBLICATION {publication} {how};",
        )
        return
    named = [rule.topic_column, rule.key_column, rule.payload_column, *rule.header_columns]
    if missing := [each for each in named if each not in columns]:
        yield _finding.must(
            "outbox_columns",
            f"the outbox {rule.table} has no column {', '.join(missing)}",
            "its events cannot be made, and twofold run refuses",
            "name its columns in [[outbox]]: topic_column, key_column, payload_column, header_columns",
        )
    elif connection.execute(_NULLABLE, (*name, rule.topic_column)).fetchone() is not None:
        column = sql_identifier(rule.topic_column)
        yield _finding.should(
            "outbox_topic_null",
            f"{rule.topic_column} of the outbox {rule.table} may be null",
            "an event without a topic ends the run until a person decides",
            f"ALTER TABLE {table} ALTER COLUMN {column} SET NOT NULL, ADD CHECK ({column} <> '');",
        )
