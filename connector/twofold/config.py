"""The configuration: one TOML file, environment variables over it.

`load(path)` reads and checks everything once; each room gets its own part, frozen. An environment
variable is the setting's path in capitals, joined by two underscores: `TWOFOLD_SOURCE__DSN`,
`TWOFOLD_PREPARED__HOLD`. Secrets are `SecretStr`, so that no log, error or `config show` prints
them. Times are seconds, sizes are bytes.
"""

from __future__ import annotations

import fnmatch
import ipaddress
import json
import os
import re
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, get_origin

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
_HOST = r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])"
_BROKER = rf" *(?:[A-Za-z_]+://)?{_HOST}(?::[0-9]{{1,5}})? *"
_BOOTSTRAP, _URL = rf"^{_BROKER}(?:,{_BROKER})*,?$", rf"^(?i:https?)://{_HOST}(?::[0-9]{{1,5}})?(?:/.*)?$"
_PATTERNS = {
    _NAME: "1 to 40 of a-z, 0-9 and _",
    _PREFIX: "1 to 100 of A-Z, a-z, 0-9, '.', '_' and '-'",
    _BOOTSTRAP: "host:port of one or more brokers, separated by commas",
}
Name = Annotated[str, StringConstraints(pattern=_NAME)]
Bootstrap = Annotated[str, StringConstraints(pattern=_BOOTSTRAP)]
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


def _secret(setting: str, value: SecretStr | None, file: Path | None) -> str | None:
    """A setting that may stand in a file of its own."""
    if file is not None:
        return _first_line(f"{setting}_file", file)
    return value.get_secret_value() if value else None


class SourceConfig(_Part):
    """PostgreSQL."""

    dsn: SecretStr = Field(
        description="libpq connection string or URL, such as host=db dbname=bank user=twofold. Keep the password in password_file or PGPASSFILE."
    )
    password_file: Path | None = Field(None, description="File whose first line is the password.")
    slot: Name | None = Field(None, description="Replication slot; default: the connector's name.")
    publication: str | None = Field(None, description="Publication; default: the connector's name.")
    tables: tuple[str, ...] = Field(
        (),
        description="Tables that `init` publishes: schema.table, schema.*, or the one entry * for all. Empty: the publication exists already.",
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
    messages: bool = Field(True, description="Carry logical messages (pg_logical_emit_message).")
    backfill: bool = Field(
        True,
        description="Load the rows that a table has when it joins the publication.",
    )
    reload_on_rewrite: bool = Field(
        False,
        description="Reload a table after DDL that rewrites it without sending rows, such as ALTER COLUMN ... TYPE ... USING. If false, the log names the table.",
    )
    slot_wait: float = Field(
        60, gt=0, description="How long `init` waits for running transactions when it creates the slot."
    )
    standby: bool = Field(
        True,
        description="While another instance holds the slot, wait as a hot standby. If false, end with status 6.",
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

    bootstrap: Bootstrap = Field(description="Brokers as host:port, separated by commas.")
    prefix: TopicPrefix | None = Field(
        None,
        description="Prefix of topics and transactional ids; default: the connector's name. One source per prefix.",
    )
    partitions: int = Field(6, ge=1, le=1000, description="Partitions of a new topic of a table.")
    replication: int = Field(3, ge=1, description="Replication factor of new topics.")
    min_insync_replicas: int = Field(2, ge=1, description="min.insync.replicas of new topics.")
    retention: float = Field(
        7 * 86400,
        description="Retention of new topics of tables; the commits topic keeps 8 days more. -1: forever.",
    )
    transaction_timeout: float = Field(
        60,
        gt=0,
        description="The broker aborts a transaction that is open for longer. Must be above prepared.hold.",
    )
    call_timeout: float = Field(
        30, gt=0, description="Longest time of one call to Kafka; after it the run ends and recovers."
    )
    options: dict[str, str | int | float | bool] = Field(
        default_factory=dict,
        description="Options for librdkafka, such as security.protocol, sasl.*, ssl.*, compression.type. Some are refused, see above.",
        repr=False,
    )
    options_file: Path | None = Field(None, description="TOML file with more such options, for secrets.")
    tombstones: bool = Field(True, description="After a delete, write a record with the key and a null value.")
    placeholders: bool = Field(
        False,
        description="If PostgreSQL did not send an unchanged large value, write Debezium's __debezium_unavailable_value instead of null. The envelope's list `unchanged` names the column in both cases.",
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
    timeout: float = Field(10, gt=0, description="Longest time of one call, with its retries.")

    @property
    def basic(self) -> tuple[str, str] | None:
        """User and password, if there are any."""
        if self.username is None:
            return None
        return self.username, _secret("registry.password", self.password, self.password_file) or ""

    @property
    def bearer(self) -> str | None:
        return _secret("registry.token", self.token, self.token_file)

    @field_validator("url")
    @classmethod
    def _is_an_address_without_secrets(cls, url: str) -> str:
        # It is shown by config show, in errors and by doctor.
        if "@" in url.partition("://")[2].partition("/")[0]:
            raise ValueError(
                "registry.url must not hold a password: give it as registry.username and registry.password"
            )
        if re.match(_URL, url) is None:
            raise ValueError(
                "must be http://host:port or https://host:port, with the path of the registry's API if it has one"
            )
        return url


class GidRule(_Part):
    """A rule for prepared transactions whose gid matches a pattern; the first match wins."""

    gid: str = Field(description="Shell pattern: * ? [...].")
    action: Literal["open", "park"] = Field(
        description="open: send the rows to Kafka at PREPARE. park: keep them in the spool until the outcome."
    )


class PreparedConfig(_Part):
    """Prepared transactions."""

    hold: float = Field(
        30,
        gt=0,
        description="How long a prepared transaction stays open in Kafka before it is parked, so that readers continue. Must be below kafka.transaction_timeout.",
    )
    open_within: float = Field(
        0.2,
        ge=0,
        description="A staged prepared transaction is opened after this time at the latest. It is opened earlier if nothing waits to be read, 10 ms have passed without its outcome, and at most `prepared.pool` are in doubt.",
    )
    pool: int = Field(
        8, ge=1, le=100, description="Number of prepared transactions that may be open at once; more are parked."
    )
    synchronous: bool = Field(False, description="Acknowledge a PREPARE to PostgreSQL only when Kafka has its rows.")
    rules: tuple[GidRule, ...] = Field((), description="Rules by gid, see below.")
    doubt_warning: float = Field(
        600, gt=0, description="Report a prepared transaction that is older as in doubt too long."
    )

    def parks(self, gid: str) -> bool:
        """What the rules say of this gid: the counterpart of an output plugin's filter_prepare."""
        return next((rule.action for rule in self.rules if fnmatch.fnmatchcase(gid, rule.gid)), "open") == "park"


class BackfillConfig(_Part):
    """Loads of the rows that tables already have."""

    readers: int = Field(2, ge=1, le=32, description="Number of tables that are read at the same time.")
    chunk_rows: int = Field(10_000, ge=1, description="Rows in a chunk, which is read and published at once.")
    chunk_bytes: int = Field(8 << 20, ge=1, description="Bytes after which a chunk ends, whatever its rows.")
    rows_per_second: int = Field(0, ge=0, description="Limit of a table's load, on average; 0: none.")
    notice: float = Field(
        10,
        ge=0,
        description="How often to look for tables that joined the publication. 0: they are found at their first row, or at the next start.",
    )


class TurnConfig(_Part):
    """Limits of one turn."""

    rows: int = Field(
        20_000,
        ge=1,
        description="Rows after which a turn ends, at the next transaction's end. Up to four times as many while Kafka commits the turn before.",
    )
    bytes: int = Field(16 << 20, ge=1, description="Bytes after which a turn ends, at the next transaction's end.")
    time: float = Field(
        0.5,
        gt=0,
        description="Longest time of a turn while more waits to be read and Kafka has committed the turn before.",
    )
    idle_progress: float = Field(
        10, gt=0, description="How often an idle connector confirms PostgreSQL's position, so that no WAL is held."
    )


class SpoolConfig(_Part):
    """Where prepared and large transactions wait. It is a cache: losing it loses nothing."""

    folder: Path = Field(
        Path("/var/tmp/twofold"),  # noqa: S108  (a name of its own is made in it, readable by its owner alone)
        description="Folder for rows that exceed the memory; the connector creates a folder of its name in it.",
    )
    memory: int = Field(64 << 20, ge=0, description="Memory for waiting rows.")
    disk: int = Field(64 << 30, ge=0, description="Disk for waiting rows; beyond it the run ends, says so and retries.")


class StatusConfig(_Part):
    """The status page, metrics and health of `twofold run`."""

    listen: str = Field(
        "127.0.0.1:8787",
        description="host:port of the status page, /metrics, /healthz and /readyz. Port 0: a free one; none: off. Beyond loopback it requires status.token.",
    )
    token: SecretStr | None = Field(
        None, description="Bearer token for /metrics and the page; required beyond loopback."
    )
    token_file: Path | None = Field(None, description="File whose first line is the token.")

    @property
    def bearer(self) -> str | None:
        return _secret("status.token", self.token, self.token_file)

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
    """The log of `twofold run`, on stderr."""

    format: Literal["text", "json"] = Field("text", description="Lines for people, or one JSON object a line.")
    level: Literal["debug", "info", "warning", "error"] = Field("info", description="The lowest level that is logged.")


class Config(BaseSettings):
    """All settings."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True, env_prefix="TWOFOLD_", env_nested_delimiter="__")

    name: Name = Field(
        description="The connector's name. It names the slot, the publication, the topic prefix and the progress record."
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
            more["password"] = _first_line("source.password_file", self.source.password_file)
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


def _first_line(setting: str, path: Path) -> str:
    try:
        return path.read_text().partition("\n")[0]
    except OSError as error:
        raise UsageError(f"{setting} names {path}, which cannot be read: {error.strerror}") from None


def load(path: Path | None = None) -> Config:
    """Read the file (twofold.toml in the working directory if none is named) and the environment;
    all mistakes at once, each with its place.
    """
    given = path or DEFAULT_FILE
    values: dict[str, Any] = {}
    if path or given.exists():
        try:
            values = tomllib.loads(given.read_text())
        except OSError as error:
            raise UsageError(f"configuration file {given} cannot be read: {error.strerror}") from None
        except tomllib.TOMLDecodeError as error:
            raise UsageError(
                f'configuration file {given} is not TOML: {error}; text needs double quotes, for example name = "bank"'
            ) from None
    elif not any(_is_setting(name) for name in os.environ):
        raise UsageError(
            f"there is no configuration: {given} is not in this folder; name a file before the command: twofold -c FILE ..."
        )
    lines = [f"  environment {name}: there is no such section" for name in sorted(os.environ) if _is_stray(name)]
    try:
        config = Config(**values)
    except SettingsError:
        # It names the section alone. The value may be a secret.
        raise UsageError(
            f'environment {_not_json()}: not JSON, and lists and tables are JSON there, for example ["public.*"]'
        ) from None
    except ValidationError as error:
        lines += [
            f"  {_placed('.'.join(str(p) for p in e['loc']) or str(given), _message(e))}"
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
    kind = error["type"]
    if kind == "string_pattern_mismatch":
        return f"must be {_PATTERNS[error['ctx']['pattern']]}"
    if kind == "extra_forbidden":
        return _unknown(error)
    if kind == "value_error":
        return str(error["ctx"]["error"])
    words = next((words for sign, words in _KINDS.items() if kind.startswith(sign)), None)
    return words or str(error["msg"]).replace("Input should be", "must be")


_KINDS = {
    "missing": "is missing",
    "bool_": "must be true or false",
    "int_": "must be an integer",
    "float_": "must be a number",
    "string_type": "must be text in double quotes",
    "tuple_type": 'must be a list, for example ["public.*"]',
    "dict_type": "must be a section of its own",
    "model_": "must be a section of its own",
}
"""Words for pydantic's kinds of errors, by how the kind begins: its own words are in Python's
terms.
"""


def _unknown(error: Mapping[str, Any]) -> str:
    *sections, name = map(str, error["loc"])
    part: type[BaseModel] = Config
    for section in sections:
        kind = part.model_fields[section].annotation
        if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
            return "there is no such setting"
        part = kind
    alike = get_close_matches(name, part.model_fields, n=1)
    return f"there is no such setting{f'; did you mean {alike[0]}?' if alike else ''}"


def _placed(place: str, words: str) -> str:
    """Some words begin with the setting already."""
    return words if words.startswith(place) else f"{place}: {words}"


def _not_json() -> str:
    """The variables of whole sections, lists and tables whose value is not JSON."""
    wanted = {f"TWOFOLD_{section}".upper() for section in Config.model_fields if section != "name"}
    for section, part in Config.model_fields.items():
        for name, field in getattr(part.annotation, "model_fields", {}).items():
            if get_origin(field.annotation) in {tuple, dict}:
                wanted.add(f"TWOFOLD_{section}__{name}".upper())
    return ", ".join(name for name in sorted(os.environ) if name.upper() in wanted and not _is_json(os.environ[name]))


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _is_setting(variable: str) -> bool:
    """Whether the environment's variable may name a setting, or a whole section as JSON."""
    name = variable.upper()
    return name.startswith("TWOFOLD_") and (
        "__" in name or name.removeprefix("TWOFOLD_").lower() in Config.model_fields
    )


def _is_stray(variable: str) -> bool:
    """A setting of a section that does not exist: pydantic passes over it. A name without two
    underscores may be for something else (`TWOFOLD_CONFIG`).
    """
    section = re.match("TWOFOLD_(.*?)__", variable, re.IGNORECASE)
    return section is not None and section[1].lower() not in Config.model_fields
