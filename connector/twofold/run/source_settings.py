"""What the configuration asks of the source."""

from __future__ import annotations

from twofold.config import Config
from twofold.errors import UsageError
from twofold.source.provisioning import PublicationContent
from twofold.source.standby import SourceUse
from twofold_common.table_names import split_table_name


def source_use(config: Config) -> SourceUse:
    """Return what the configuration asks of the source, of which not every source can give all."""
    return SourceUse(
        failover=config.source.failover,
        synchronous=config.prepared.synchronous,
        loads=config.source.backfill,
        in_group=config.group.name is not None,
    )


def wants_messages(config: Config) -> bool:
    """Whether the server is asked for logical messages."""
    return config.source.messages or config.source.ddl_messages


def selection(config: Config, version_num: int) -> str:
    """Return what decides which transactions the server sends: the others are empty for it.

    So does its version: before 15.19, the outcome of a prepared transaction that only locked rows
    was sent.
    """
    messages = f"{'with' if wants_messages(config) else 'without'} messages"
    return f"{config.publication} {messages} of PostgreSQL {version_num}"


def wanted_publication(config: Config) -> PublicationContent | None:
    """Return the publication that source.tables describes; None if it must exist."""
    if not config.source.tables:
        return None
    tables, schemas = [], []
    for entry in config.source.tables:
        if entry == "*":
            return PublicationContent(all_tables=True, via_partition_root=config.source.publish_via_root)
        if (split := split_table_name(entry)) is None:
            raise UsageError(f"source.tables: {entry!r} must be schema.table, schema.* or *")
        schema, table = split
        if table == "*":
            schemas.append(schema)
        else:
            tables.append((schema, table))
    return PublicationContent(tuple(tables), tuple(schemas), via_partition_root=config.source.publish_via_root)
