"""The configuration: one TOML file, environment variables over it.

`load(path)` reads and checks everything once; each folder gets its own part, frozen. An environment
variable is the setting's path in capitals, joined by two underscores: `TWOFOLD_SOURCE__DSN`,
`TWOFOLD_PREPARED__HOLD`. A secret is in a file, or a command prints it: no setting has one.
Times are seconds, sizes are bytes.
"""

from __future__ import annotations

from twofold.config.kinds import is_loopback, require_secret_options
from twofold.config.reading import Config, load
from twofold.config.run_settings import (
    BackfillConfig,
    ColumnRule,
    GidRule,
    LogConfig,
    OutboxRule,
    PreparedConfig,
    SpoolConfig,
    StatusConfig,
    TurnConfig,
)
from twofold.config.server_settings import KafkaConfig, RegistryConfig, SourceConfig

__all__ = [
    "BackfillConfig",
    "ColumnRule",
    "Config",
    "GidRule",
    "KafkaConfig",
    "LogConfig",
    "OutboxRule",
    "PreparedConfig",
    "RegistryConfig",
    "SourceConfig",
    "SpoolConfig",
    "StatusConfig",
    "TurnConfig",
    "is_loopback",
    "load",
    "require_secret_options",
]
