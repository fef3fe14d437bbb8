"""The configuration: one TOML file, environment variables over it.

`load(path)` reads and checks everything once; each room gets its own part, frozen. An environment variable is the setting's path in capitals, joined by two underscores:
`TWOFOLD_SOURCE__DSN`, `TWOFOLD_PREPARED__HOLD`. Secrets are `SecretStr`, so that no log, error or `config show` prints them. Times are seconds, sizes are bytes.
"""

from __future__ import annotations

import fnmatch
import ipaddress
import os
import re
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    StringConstraints,
    ValidationError,
    field_serializer,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from twofold.errors import UsageError

_NAME, _PREFIX = r"^[a-z0-9_]{1,40}$", r"^[A-Za-z0-9._-]{1,100}$"
_PATTERNS = {_NAME: "1 to 40 of a-z, 0-9 and _", _PREFIX: "1 to 100 of A-Z, a-z, 0-9, '.', '_' and '-'"}
Name = Annotated[str, StringConstraints(pattern=_NAME)]
TopicPrefix = Annotated[str, StringConstraints(pattern=_PREFIX)]

_REFUSED_OF_LIBPQ = {
    "replication": "each session says itself what it is",
    "client_encoding": "rows are read in UTF-8, streamed or copied",
    "load_balance_hosts": "the stream and the sessions beside it must meet the same server",
}

DEFAULT_FILE = Path("twofold.toml")
MASK = "**********"
_SECRET_OPTION = re.compile(r"password|secret|\.key\.pem|sasl\.oauthbearer\.(config|assertion)|sasl\.jaas")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _secret(value: SecretStr | None, file: Path | None) -> str | None:
    """A setting that may stand in a file of its own."""
    if file is not None:
        return _first_line(file)
    return value.get_secret_value() if value else None


class SourceConfig(_Part):
    """PostgreSQL."""

    dsn: SecretStr = Field(
        description="libpq connection string or URL of the database, for example host=db dbname=bank user=twofold. Everything libpq knows may stand in it; the password is better kept in password_file or PGPASSFILE."
    )
    password_file: Path | None = Field(None, description="File whose first line is the password.")
    slot: Name | None = Field(None, description="Replication slot; the connector's name if not set.")
    publication: str | None = Field(None, description="Publication; the connector's name if not set.")
    tables: tuple[str, ...] = Field(
        (),
        description="What `init` publishes: tables as schema.table, schemas as schema.*, or the one entry * for all tables. Empty: the publication exists already.",
    )
    publish_via_root: bool = Field(False, description="Publish a partitioned table's changes under the root's name.")
    two_phase: bool = Field(
        True, description="Decode prepared transactions at PREPARE. It is fixed when `init` makes the slot."
    )
    failover: bool = Field(
        False, description="Make the slot a failover slot (PostgreSQL 17 and later). Fixed when `init` makes the slot."
    )
    streaming: Literal["off", "on", "parallel"] = Field(
        "on", description="Let PostgreSQL send large transactions before they end."
    )
    messages: bool = Field(True, description="Carry logical messages (pg_logical_emit_message).")
    backfill: bool = Field(
        True,
        description="Load the rows that a table has when it is first published, and when it joins the publication.",
    )
    reload_on_rewrite: bool = Field(
        False,
        description="Load a table anew after changes of its definition that PostgreSQL sends no rows of, such as ALTER COLUMN ... TYPE ... USING; without, the log names them.",
    )
    slot_wait: float = Field(
        60, gt=0, description="How long `init` waits for running transactions when it makes the slot."
    )
    standby: bool = Field(
        True,
        description="While another instance holds the slot: wait for its end (a hot standby), or, if false, end with status 6.",
    )

    @field_validator("dsn")
    @classmethod
    def _is_a_conninfo(cls, dsn: SecretStr) -> SecretStr:
        from psycopg import ProgrammingError  # noqa: PLC0415  (libpq is loaded when a configuration is)
        from psycopg.conninfo import conninfo_to_dict  # noqa: PLC0415

        try:
            given = conninfo_to_dict(dsn.get_secret_value())
        except ProgrammingError:
            # libpq's own words quote the place, which may be the password.
            raise ValueError(
                "libpq does not understand it: it is made of name=value pairs, a value with spaces in single quotes, or a URL whose special characters are percent-encoded"
            ) from None
        for name, why in _REFUSED_OF_LIBPQ.items():
            if given.get(name) not in {None, "disable"}:
                raise ValueError(f"it must not set {name}: {why}")
        return dsn


class KafkaConfig(_Part):
    """Kafka."""

    bootstrap: str = Field(description="Brokers, host:port, separated by commas.")
    prefix: TopicPrefix | None = Field(
        None,
        description="Topic prefix and prefix of the transactional ids; the connector's name if not set. One source per prefix.",
    )
    partitions: int = Field(6, ge=1, le=1000, description="Partitions of a table's topic when it is made.")
    replication: int = Field(3, ge=1, description="Replication factor of topics that are made.")
    min_insync_replicas: int = Field(2, ge=1, description="min.insync.replicas of topics that are made.")
    retention: float = Field(
        7 * 86400, description="Retention of tables' topics and of the commits topic when they are made; -1 keeps all."
    )
    transaction_timeout: float = Field(
        60,
        gt=0,
        description="After this time the broker aborts a transaction whose producer went silent; above prepared.hold.",
    )
    call_timeout: float = Field(
        30, gt=0, description="Longest time that one call to Kafka may take before the run ends and recovers."
    )
    options: dict[str, str | int | float | bool] = Field(
        default_factory=dict,
        description="Passed to librdkafka as they are: security.protocol, sasl.*, ssl.*, linger.ms, compression.type... Those that would break a promise are refused.",
        repr=False,
    )
    options_file: Path | None = Field(None, description="TOML file with more of the same, for secrets.")
    tombstones: bool = Field(True, description="Follow a delete by a record with the key and a null value.")
    placeholders: bool = Field(
        False,
        description="Where PostgreSQL did not send a large value because an UPDATE left it as it was, write Debezium's placeholder, __debezium_unavailable_value; else null. The envelope's list `unchanged` names the column either way.",
    )

    @field_serializer("options")
    def _masked(self, options: dict[str, str | int | float | bool]) -> dict[str, str | int | float | bool]:
        """For `config show`: librdkafka's secrets are among the rest."""
        return {name: MASK if _SECRET_OPTION.search(name) else value for name, value in options.items()}


class RegistryConfig(_Part):
    """The schema registry."""

    url: str = Field(description="URL of a registry with Confluent's API, without user and password.")
    username: str | None = Field(None, description="Basic authentication.")
    password: SecretStr | None = Field(None, description="Basic authentication.")
    password_file: Path | None = Field(None, description="File whose first line is the password.")
    token: SecretStr | None = Field(None, description="Bearer token.")
    token_file: Path | None = Field(None, description="File whose first line is the token.")
    ca_file: Path | None = Field(None, description="Certificate authorities.")
    timeout: float = Field(10, gt=0, description="Longest time of one call, retries included.")

    @property
    def basic(self) -> tuple[str, str] | None:
        """User and password, if there are any."""
        return None if self.username is None else (self.username, _secret(self.password, self.password_file) or "")

    @property
    def bearer(self) -> str | None:
        return _secret(self.token, self.token_file)

    @field_validator("url")
    @classmethod
    def _without_secrets(cls, url: str) -> str:
        # It is shown by config show, in errors and by doctor.
        if "@" in url.partition("://")[2].partition("/")[0]:
            raise ValueError(
                "registry.url must not hold a password: give it as registry.username and registry.password"
            )
        return url


class GidRule(_Part):
    """What to do with prepared transactions whose gid fits a pattern; the first rule that fits wins."""

    gid: str = Field(description="Shell pattern: * ? [...].")
    action: Literal["open", "park"] = Field(
        description="open: the rows go to Kafka at PREPARE; park: they wait here for the outcome."
    )


class PreparedConfig(_Part):
    """Prepared transactions."""

    hold: float = Field(
        30,
        gt=0,
        description="How long a prepared transaction's Kafka transaction stays open before it is parked, so that readers go on. Must stay below kafka.transaction_timeout.",
    )
    open_within: float = Field(
        0.2,
        ge=0,
        description="A staged prepared transaction is opened when nothing more waits to be read and its outcome has not followed within a hundredth of a second, at the latest after this time; only then while more than `prepared.pool` are in doubt.",
    )
    pool: int = Field(8, ge=1, le=100, description="How many may be open at once; more are parked.")
    synchronous: bool = Field(
        False, description="Acknowledge a prepare to PostgreSQL only when Kafka has its rows; see docs."
    )
    rules: tuple[GidRule, ...] = Field((), description="Rules by gid.")
    doubt_warning: float = Field(
        600, gt=0, description="A prepared transaction older than this is reported as in doubt too long."
    )

    def parks(self, gid: str) -> bool:
        """What the rules say of this gid: the counterpart of an output plugin's filter_prepare."""
        return next((rule.action for rule in self.rules if fnmatch.fnmatchcase(gid, rule.gid)), "open") == "park"


class BackfillConfig(_Part):
    """The rows that were there before."""

    readers: int = Field(2, ge=1, le=32, description="How many tables are read at the same time.")
    chunk_rows: int = Field(10_000, ge=1, description="Rows that are read, and published, at a time.")
    chunk_bytes: int = Field(8 << 20, ge=1, description="Bytes after which a chunk ends, however few rows it has.")
    rows_per_second: int = Field(0, ge=0, description="Longest-term limit of a table's load; 0: none.")
    notice: float = Field(
        10,
        ge=0,
        description="How often tables that have joined the publication are looked for, so that one in which nothing changes is loaded too; 0: they are met at their first row, or at the next start.",
    )


class TurnConfig(_Part):
    """Limits of one turn of the loop."""

    rows: int = Field(
        20_000,
        ge=1,
        description="Rows after which a turn is closed at the next transaction's end; while Kafka still commits the one before, up to four times as many are gathered.",
    )
    bytes: int = Field(16 << 20, ge=1, description="Bytes after which a turn is closed at the next transaction's end.")
    time: float = Field(
        0.5,
        gt=0,
        description="Longest time before a turn is closed while there is more to read and Kafka is not at work on the one before.",
    )
    idle_progress: float = Field(
        10, gt=0, description="With nothing to do, how often the position follows PostgreSQL's, so that no WAL is held."
    )


class SpoolConfig(_Part):
    """Where prepared and large transactions wait. A cache: losing it loses nothing."""

    folder: Path = Field(
        Path("/var/tmp/twofold"),  # noqa: S108  (a name of its own is made in it, readable by its owner alone)
        description="Folder for what does not fit into memory; a folder of the connector's name is made in it.",
    )
    memory: int = Field(64 << 20, ge=0, description="Memory for waiting rows.")
    disk: int = Field(64 << 30, ge=0, description="Disk for waiting rows; past it the run stops and says so.")


class StatusConfig(_Part):
    """The status page, metrics and health of `twofold run`."""

    listen: str = Field(
        "127.0.0.1:8787",
        description="host:port of the status page at /, /metrics, /healthz and /readyz; port 0 takes a free one; none: off. Beyond loopback it asks for status.token.",
    )
    token: SecretStr | None = Field(
        None, description="What /metrics and the page ask for (Authorization: Bearer); needed beyond loopback."
    )
    token_file: Path | None = Field(None, description="File whose first line is the token.")

    @property
    def bearer(self) -> str | None:
        return _secret(self.token, self.token_file)

    @property
    def host(self) -> str:
        return self.listen.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        return int(self.listen.rpartition(":")[2])

    @model_validator(mode="after")
    def _is_guarded(self) -> StatusConfig:
        if self.listen == "none":
            return self
        host, port = self.host, self.listen.rpartition(":")[2]
        if not host or not port.isdecimal() or int(port) > 65535:
            raise ValueError(f"status.listen is {self.listen!r}: host:port, for example 127.0.0.1:8787, or none")
        if self.token is None and self.token_file is None and not is_loopback(host):
            raise ValueError(
                f"status.listen is {self.listen}, which others reach: set status.token or status.token_file, or listen on 127.0.0.1"
            )
        return self


class LogConfig(_Part):
    """What `twofold run` writes to stderr."""

    format: Literal["text", "json"] = Field("text", description="Lines for people, or one JSON object a line.")
    level: Literal["debug", "info", "warning", "error"] = Field("info", description="The least that is written.")


class Config(BaseSettings):
    """All of it."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True, env_prefix="TWOFOLD_", env_nested_delimiter="__")

    name: Name = Field(
        description="The connector's name: names the slot, the publication, the topic prefix and the progress record."
    )
    source: SourceConfig
    kafka: KafkaConfig
    registry: RegistryConfig
    prepared: PreparedConfig = PreparedConfig()  # type: ignore[call-arg]
    turn: TurnConfig = TurnConfig()  # type: ignore[call-arg]
    spool: SpoolConfig = SpoolConfig()  # type: ignore[call-arg]
    backfill: BackfillConfig = BackfillConfig()  # type: ignore[call-arg]
    status: StatusConfig = StatusConfig()  # type: ignore[call-arg]
    log: LogConfig = LogConfig()  # type: ignore[call-arg]

    @property
    def slot(self) -> str:
        return self.source.slot or self.name

    @property
    def publication(self) -> str:
        return self.source.publication or self.name

    @property
    def prefix(self) -> str:
        return self.kafka.prefix or self.name

    @property
    def conninfo(self) -> str:
        """The connection string with the password from its file."""
        from psycopg.conninfo import make_conninfo  # noqa: PLC0415  (libpq is loaded only by those who connect)

        more = {}
        if self.source.password_file:
            more["password"] = _first_line(self.source.password_file)
        return make_conninfo(self.source.dsn.get_secret_value(), **more)

    @field_validator("name")
    @classmethod
    def _not_reserved(cls, name: str) -> str:
        if name.startswith("pg_"):
            raise ValueError("names that begin with pg_ are PostgreSQL's own")
        return name

    @model_validator(mode="after")
    def _holds_below_timeout(self) -> Config:
        if self.prepared.hold >= self.kafka.transaction_timeout:
            raise ValueError(
                f"prepared.hold ({self.prepared.hold:g} s) must be below kafka.transaction_timeout ({self.kafka.transaction_timeout:g} s): the broker would abort what is still held open"
            )
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003  (the base class names it)
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return env_settings, init_settings


def _first_line(path: Path) -> str:
    try:
        return path.read_text().partition("\n")[0]
    except OSError as error:
        raise UsageError(f"{path}, which a setting names for a secret, cannot be read: {error.strerror}") from None


def load(path: Path | None = None) -> Config:
    """Read the file (twofold.toml in the working directory if none is named) and the environment; all mistakes at once, each with its place."""
    given = path or DEFAULT_FILE
    values: dict[str, Any] = {}
    if path or given.exists():
        try:
            values = tomllib.loads(given.read_text())
        except OSError as error:
            raise UsageError(f"configuration file {given} cannot be read: {error.strerror}") from None
        except tomllib.TOMLDecodeError as error:
            raise UsageError(f"configuration file {given} is not TOML: {error}") from None
    lines = [f"  environment {name}: there is no such section" for name in sorted(os.environ) if _is_stray(name)]
    try:
        config = Config(**values)
    except SettingsError as error:
        # Of a variable: it names the part and the source, never the value.
        raise UsageError(f"environment TWOFOLD_*: {error}: lists and tables are JSON") from None
    except ValidationError as error:
        lines += [
            f"  {'.'.join(str(p) for p in e['loc']) or given}: {_message(e)}"
            for e in error.errors(include_input=False, include_url=False)
        ]
    if lines:
        raise UsageError(
            "\n".join(
                [
                    f"configuration is not usable (file {given}{'' if values else ', which is empty or missing'}; environment TWOFOLD_*):",
                    *lines,
                ]
            )
        )
    return config


def _message(error: Mapping[str, Any]) -> str:
    """What is wrong with a setting; of one that does not exist, what may have been meant."""
    if error["type"] == "string_pattern_mismatch":
        return f"must be {_PATTERNS[error['ctx']['pattern']]}"
    if error["type"] != "extra_forbidden":
        return str(error["msg"])
    *sections, name = map(str, error["loc"])
    part: type[BaseModel] = Config
    for section in sections:
        kind = part.model_fields[section].annotation
        if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
            return str(error["msg"])
        part = kind
    alike = get_close_matches(name, part.model_fields, n=1)
    return f"there is no such setting{f'; did you mean {alike[0]}?' if alike else ''}"


def _is_stray(variable: str) -> bool:
    """A setting of a section that does not exist: pydantic passes over it. A name without two underscores may be for something else (`TWOFOLD_CONFIG`)."""
    section = re.match("TWOFOLD_(.*?)__", variable, re.IGNORECASE)
    return section is not None and section[1].lower() not in Config.model_fields
