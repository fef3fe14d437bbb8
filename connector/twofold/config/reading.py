"""Reads all settings from a TOML file and the environment; reports all mistakes at once."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_origin

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from twofold.config.kinds import PATTERNS, Name
from twofold.config.run_settings import (
    BackfillConfig,
    GroupConfig,
    LogConfig,
    OutboxRule,
    PolicyConfig,
    PreparedConfig,
    SpoolConfig,
    StatusConfig,
    TurnConfig,
)
from twofold.config.server_settings import KafkaConfig, RegistryConfig, SourceConfig
from twofold.conninfo import Conninfo
from twofold.errors import UsageError
from twofold_common.secret_sources import SecretSource

DEFAULT_FILE = Path("twofold.toml")


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
    policy: PolicyConfig = PolicyConfig()  # type: ignore[call-arg]
    outbox: tuple[OutboxRule, ...] = Field(default=(), description="Events, see below.")
    group: GroupConfig = GroupConfig()  # type: ignore[call-arg]
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
    def conninfo(self) -> Conninfo:
        """The connection string with where its password comes from, and the primary's."""
        password, primary = self.source.password, self.source.primary_dsn
        return Conninfo(self.source.dsn, password, None if primary is None else Conninfo(primary, password))

    @property
    def secrets(self) -> tuple[SecretSource, ...]:
        """Where all secrets come from, except those in `kafka.options_file`."""
        registry = self.registry
        given = (self.source.password, self.kafka.password, registry.password, registry.token, self.status.token)
        return tuple(source for source in given if source is not None)

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

    @model_validator(mode="after")
    def _has_messages(self) -> Config:
        if not self.source.messages and any(rule.messages for rule in self.outbox):
            raise ValueError("outbox.messages needs source.messages = true")
        return self

    @field_validator("outbox")
    @classmethod
    def _name_each_table_once(cls, outbox: tuple[OutboxRule, ...]) -> tuple[OutboxRule, ...]:
        tables = [rule.name for rule in outbox if rule.name is not None]
        if twice := next((name for name in tables if tables.count(name) > 1), None):
            raise ValueError(f"{'.'.join(twice)} is the table of two [[outbox]]: a row is one event, so name it once")
        return outbox

    @model_validator(mode="after")
    def _is_a_member(self) -> Config:
        if self.group.name and self.prefix not in self.group.members:
            raise ValueError(
                f"group.members is {', '.join(self.group.members)}, without this connector's prefix {self.prefix}: add it, or correct kafka.prefix"
            )
        if self.group.name and not self.source.two_phase:
            raise ValueError(
                "group.members needs source.two_phase = true: without it nobody knows which branches are in doubt"
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


def load(path: Path | None = None) -> Config:
    """Read the file (by default ./twofold.toml) and the environment; all mistakes at once."""
    given = path or DEFAULT_FILE
    values: dict[str, Any] = {}
    if path or given.exists():
        try:
            values = tomllib.loads(given.read_text("utf-8-sig"))  # some editors write a mark before the text
        except OSError as error:
            raise UsageError(f"configuration file {given} cannot be read: {error.strerror}") from None
        except tomllib.TOMLDecodeError as error:
            raise UsageError(f"configuration file {given} is not TOML: {error}; {_toml_hint(str(error))}") from None
        except UnicodeDecodeError as error:
            raise UsageError(f"configuration file {given} is not UTF-8, which TOML is: byte {error.start}") from None
    elif not any(_is_setting(name) for name in os.environ):
        raise UsageError(
            f"there is no configuration: {given} is not in this folder; name a file before the command: twofold -c FILE ..."
        )
    lines = [
        f"  environment {name}: there is no such section" for name in sorted(os.environ) if _is_unknown_section(name)
    ]
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


def _toml_hint(problem: str) -> str:
    if "array" in problem.lower():
        return "a list ends with ], and has commas between its entries"
    return 'text needs double quotes, for example name = "bank"'


def _message(error: Mapping[str, Any]) -> str:
    """Describe what is wrong with a setting; for an unknown one, name one that may be meant."""
    kind = error["type"]
    if kind == "string_pattern_mismatch":
        return f"must be {PATTERNS[error['ctx']['pattern']]}"
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
"""Words for pydantic's kinds of errors, by how the kind begins; pydantic's are Python's."""


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
    """Put the setting before the words, unless they begin with it already."""
    return words if words.startswith(place) else f"{place}: {words}"


def _not_json() -> str:
    """Return the variables whose value is not JSON, although their settings are no scalars."""
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


def _is_unknown_section(variable: str) -> bool:
    """Whether the variable names a section that does not exist. pydantic ignores such variables.

    A name without two underscores may be for something else (`TWOFOLD_CONFIG`).
    """
    section = re.match("TWOFOLD_(.*?)__", variable, re.IGNORECASE)
    return section is not None and section[1].lower() not in Config.model_fields
