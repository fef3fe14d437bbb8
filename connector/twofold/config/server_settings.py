"""The settings of the three servers: PostgreSQL, Kafka, the schema registry."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from pydantic import Field, field_serializer, field_validator

from twofold.config.kinds import (
    MASK,
    SECRET_OPTION,
    SHOWN_OPTION,
    URL,
    Bootstrap,
    Name,
    Part,
    TopicPrefix,
    secret_source,
)
from twofold_common.secret_sources import SecretSource

_REFUSED_OF_LIBPQ = {
    "replication": "each session says itself what it is",
    "client_encoding": "rows are read in UTF-8, streamed or copied",
    "load_balance_hosts": "the stream and the sessions beside it must meet the same server",
}


class SourceConfig(Part):
    """PostgreSQL."""

    dsn: str = Field(
        description="libpq connection string or URL without a password, such as host=db dbname=bank user=twofold."
    )
    primary_dsn: str | None = Field(None, description="The same for the primary, if dsn leads to its physical standby.")
    password_file: Path | None = Field(None, description="File whose first line is the password.")
    password_command: tuple[str, ...] = Field((), description="Command that prints the password.")
    slot: Name | None = Field(None, description="Replication slot; default: the connector's name.")
    publication: str | None = Field(None, description="Publication; default: the connector's name.")
    tables: tuple[str, ...] = Field(
        (),
        description="Tables that `init` publishes: schema.table, schema.*, or the one entry * for all; a name with a dot is quoted. Empty: the publication exists already.",
    )
    publish_via_root: bool = Field(False, description="Publish a partitioned table's changes under the root's name.")
    two_phase: bool = Field(
        True, description="Decode prepared transactions at PREPARE. Fixed when `init` creates the slot."
    )
    failover: bool = Field(
        False, description="Create a failover slot (PostgreSQL 17 and later). Fixed when `init` creates the slot."
    )
    streaming: Literal["off", "on", "parallel"] = Field(
        "on", description="Let PostgreSQL send large transactions before they end."
    )
    messages: bool = Field(True, description="Publish logical messages (pg_logical_emit_message).")
    ddl_messages: bool = Field(
        False,
        description="Let `init` make event triggers that put each change of a table's definition into the stream. Needs a superuser, or what a service has in its place.",
    )
    backfill: bool = Field(True, description="Load the rows that a table has when it joins the publication.")
    reload_up_to: int = Field(
        1_000_000,
        ge=0,
        description="Reload a stale table by itself, as after ALTER COLUMN ... TYPE ... USING, if it has at most about so many rows. Above, the log names the table. 0: never.",
    )
    slot_wait: float = Field(
        60, gt=0, description="How long `init` waits for running transactions when it creates the slot."
    )
    standby: bool = Field(
        True, description="While another instance holds the slot, wait as a hot standby. If false, end with status 6."
    )

    @field_validator("dsn", "primary_dsn")
    @classmethod
    def _is_a_conninfo(cls, dsn: str | None) -> str | None:
        if dsn is None:
            return None
        from psycopg import ProgrammingError  # noqa: PLC0415  (libpq is loaded when a configuration is)
        from psycopg.conninfo import conninfo_to_dict  # noqa: PLC0415

        try:
            given = conninfo_to_dict(dsn)
        except ProgrammingError:
            # libpq's own words quote the place, which may be the password.
            raise ValueError(
                "libpq does not understand it: it is made of name=value pairs, a value with spaces in single quotes, or a URL whose special characters are percent-encoded"
            ) from None
        if {"password", "sslpassword"} & given.keys():
            # It is shown by config show and in errors.
            raise ValueError("it must not hold a password: give it as source.password_file; a key of TLS has none")
        for name, why in _REFUSED_OF_LIBPQ.items():
            if given.get(name) not in {None, "disable"}:
                raise ValueError(f"it must not set {name}: {why}")
        return dsn

    @property
    def password(self) -> SecretSource | None:
        return secret_source("source", self, "password")


class KafkaConfig(Part):
    """Kafka."""

    bootstrap: Bootstrap = Field(description="Brokers as host:port, separated by commas.")
    prefix: TopicPrefix | None = Field(
        None,
        description="Prefix of topics and transactional ids; default: the connector's name. One source per prefix.",
    )
    partitions: int = Field(6, ge=1, le=1000, description="Partitions of a new topic of a table.")
    replication: int = Field(3, ge=1, description="Replication factor of new topics.")
    min_insync_replicas: int = Field(2, ge=1, description="min.insync.replicas of new topics.")
    retention: float = Field(
        7 * 86400, description="Retention of new topics of tables; the commits topic keeps 8 days more. -1: forever."
    )
    transaction_timeout: float = Field(
        60, gt=0, description="The broker aborts a transaction that is open for longer. Must be above prepared.hold."
    )
    call_timeout: float = Field(
        30, gt=0, description="Longest time of one call to Kafka; after it the run ends and recovers."
    )
    options: dict[str, str | int | float | bool] = Field(
        default_factory=dict,
        description="Options for librdkafka, such as security.protocol, sasl.*, ssl.*, compression.type. Some are refused, see above.",
        repr=False,
    )
    options_file: Path | None = Field(None, description="TOML file with more such options, for other secrets.")
    password_file: Path | None = Field(None, description="File whose first line is sasl.password.")
    password_command: tuple[str, ...] = Field((), description="Command that prints sasl.password.")
    token_provider: str | None = Field(None, description="Callable for OAUTHBEARER's tokens, as module:function.")
    tombstones: bool = Field(True, description="After a delete, write a record with the key and a null value.")
    placeholders: bool = Field(
        False,
        description="If PostgreSQL did not send an unchanged large value, write Debezium's __debezium_unavailable_value instead of null.",
    )

    @property
    def secrets_expire(self) -> bool:
        """Whether a broker may deny a secret that was right a moment ago."""
        return bool(self.password or self.token_provider)

    @property
    def password(self) -> SecretSource | None:
        return secret_source("kafka", self, "password")

    @field_validator("options")
    @classmethod
    def _has_no_secrets(cls, options: dict[str, str | int | float | bool]) -> dict[str, str | int | float | bool]:
        for name in options:
            if SECRET_OPTION.search(name) and name != "sasl.oauthbearer.config":
                way = "kafka.password_file" if name == "sasl.password" else "kafka.options_file"
                raise ValueError(f"it must not hold {name}, which is a secret: give it as {way}")
        return options

    @field_serializer("options")
    def _masked(self, options: dict[str, str | int | float | bool]) -> dict[str, str | int | float | bool]:
        """For `config show`: secrets are among the rest, under names that may be misspelt."""
        return {name: value if SHOWN_OPTION.fullmatch(name) else MASK for name, value in options.items()}


class RegistryConfig(Part):
    """The schema registry."""

    url: str = Field(description="URL of a registry with Confluent's API, without user and password.")
    username: str | None = Field(None, description="Basic authentication.")
    password_file: Path | None = Field(None, description="File whose first line is the password.")
    password_command: tuple[str, ...] = Field((), description="Command that prints the password.")
    token_file: Path | None = Field(None, description="File whose first line is a bearer token.")
    token_command: tuple[str, ...] = Field((), description="Command that prints a bearer token.")
    ca_file: Path | None = Field(None, description="Certificate authorities.")
    timeout: float = Field(10, gt=0, description="Longest time of one call, with its retries.")

    @property
    def password(self) -> SecretSource | None:
        return secret_source("registry", self, "password")

    @property
    def token(self) -> SecretSource | None:
        return secret_source("registry", self, "token")

    @field_validator("url")
    @classmethod
    def _is_an_address_without_secrets(cls, url: str) -> str:
        # It is shown by config show, in errors and by doctor.
        if "@" in url.partition("://")[2].partition("/")[0]:
            raise ValueError(
                "registry.url must not hold a password: give it as registry.username and registry.password_file"
            )
        if {"?", "#"} & {*url}:
            raise ValueError("registry.url must have no query: give a token as registry.token_file")
        if re.match(URL, url) is None:
            raise ValueError(
                "must be http://host:port or https://host:port, with the path of the registry's API if it has one"
            )
        return url
