"""Joins the configuration with the source and its tables."""

from __future__ import annotations

from twofold.config import Config
from twofold.kafka.registrar import Registrar
from twofold.source.catalog import Catalog
from twofold.source.connection import connect
from twofold.source.standby import SourceUse, require_for_run
from twofold.tables.column_policy import ColumnPolicy
from twofold.tables.tables import Tables
from twofold_avro.records import Pin


def source_use(config: Config) -> SourceUse:
    """Return what the configuration asks of the source, of which not every source can give all."""
    return SourceUse(
        failover=config.source.failover,
        synchronous=config.prepared.synchronous,
        loads=config.source.backfill,
        in_group=config.group.name is not None,
    )


def require_fit_standby(config: Config) -> None:
    """Raise SetupError if the source is a standby and the configuration asks for more than a
    standby gives.
    """
    with connect(config.conninfo) as connection:
        require_for_run(config.conninfo, connection, source_use(config))


def make_tables(
    config: Config,
    database: str,
    pins: dict[str, Pin],
    *,
    catalog: Catalog,
    registrar: Registrar,
    policy: ColumnPolicy,
    has_ddl_messages: bool = False,
) -> Tables:
    """Return the published tables, as these pins have them.

    `has_ddl_messages`: the stream has a DDL message of each change of a table.
    """
    return Tables(
        prefix=config.prefix,
        database=database,
        publication=config.publication,
        partitions=config.kafka.partitions,
        tombstones=config.kafka.tombstones,
        placeholders=config.kafka.placeholders,
        hash_key=config.policy.hash_key,
        catalog=catalog,
        registrar=registrar,
        pins=pins,
        load_first=config.source.backfill,
        outbox=config.outbox,
        policy=policy,
        messages=config.source.messages,
        has_ddl_messages=has_ddl_messages,
    )
