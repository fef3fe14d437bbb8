"""Joins the configuration with the room `source`."""

from __future__ import annotations

from twofold.config import Config
from twofold.source.connection import connect
from twofold.source.standby import SourceUse, require_for_run


def source_use(config: Config) -> SourceUse:
    """Return what the configuration asks of the source, and not every source can give."""
    return SourceUse(
        failover=config.source.failover,
        synchronous=config.prepared.synchronous,
        loads=config.source.backfill,
        in_group=config.group.name is not None,
    )


def require_fit_standby(config: Config) -> None:
    """SetupError: the source is a standby, and the configuration asks what no standby can give."""
    with connect(config.conninfo) as connection:
        require_for_run(config.conninfo, connection, source_use(config))
