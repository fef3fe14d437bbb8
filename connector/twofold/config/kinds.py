"""Kinds of settings: names, addresses, and where secrets come from."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, StringConstraints, model_validator

from twofold.errors import UsageError
from twofold_common.secret_sources import SecretCommand, SecretFile, SecretSource

_NAME, _PREFIX = r"^[a-z0-9_]{1,40}$", r"^[A-Za-z0-9._-]{1,100}$"
_HOST = r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])"
_BROKER = rf" *(?:[A-Za-z_]+://)?{_HOST}(?::[0-9]{{1,5}})? *"
_BOOTSTRAP, URL = rf"^{_BROKER}(?:,{_BROKER})*,?$", rf"^(?i:https?)://{_HOST}(?::[0-9]{{1,5}})?(?:/.*)?$"
PATTERNS = {
    _NAME: "1 to 40 of a-z, 0-9 and _",
    _PREFIX: "1 to 100 of A-Z, a-z, 0-9, '.', '_' and '-'",
    _BOOTSTRAP: "host:port of one or more brokers, separated by commas",
}
Name = Annotated[str, StringConstraints(pattern=_NAME)]
Bootstrap = Annotated[str, StringConstraints(pattern=_BOOTSTRAP)]
TopicPrefix = Annotated[str, StringConstraints(pattern=_PREFIX)]

MASK = "**********"
SHOWN_OPTION = re.compile(
    r"security\.protocol|sasl\.(mechanisms?|username|oauthbearer\.(method|client\.id|scope))|(ssl\..*|enable\..*)\.(location|verification|algorithm|list|suites)"
    r"|(client|compression|broker|connections|socket|linger|batch|queue|queued|message|messages|fetch|receive|topic|metadata|reconnect|request|statistics|log|debug|api|max|sticky)\..*|debug|partitioner|linger\.ms"
)
"""The options of librdkafka that are known to be no secrets: another may be one, misspelt."""
SECRET_OPTION = re.compile(r"password|secret|\.key\.pem|sasl\.oauthbearer\.(config|assertion)|sasl\.jaas")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Part(BaseModel):
    """A section: no unknown setting, never changed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="after")
    def _has_each_secret_once(self) -> Self:
        for command in type(self).model_fields:
            file = f"{command.removesuffix('_command')}_file"
            if command.endswith("_command") and getattr(self, command) and getattr(self, file):
                raise ValueError(f"has the same secret twice: set one of {file}, {command}")
        return self


def secret_source(section: str, part: Part, secret: str) -> SecretSource | None:
    """Return where a secret of the section comes from; None without one.

    The settings that end in `_file` and `_command` name the source.
    """
    file, arguments = (getattr(part, f"{secret}_{way}", None) for way in ("file", "command"))
    if file:
        return SecretFile(f"{section}.{secret}_file", file)
    return SecretCommand(f"{section}.{secret}_command", arguments) if arguments else None


def require_secret_options(options: Mapping[str, Any]) -> None:
    """Refuse secrets of `kafka.options_file` that are empty, or that have a file of their own."""
    for name, value in options.items():
        if name == "sasl.password":
            raise UsageError("kafka.options_file has 'sasl.password': give it as kafka.password_file")
        if SECRET_OPTION.search(name) and not str(value).strip():
            raise UsageError(f"kafka.options_file has {name!r}, which is empty: give a secret, or remove the option")
