"""Kinds of settings: names, addresses, secrets that may stand in files of their own."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, SecretStr, StringConstraints

from twofold.errors import UsageError
from twofold_common.secret_command import SecretCommand

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
    """Whether only this machine can reach it."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _require_content(value: SecretStr) -> SecretStr:
    if not value.get_secret_value().strip():
        raise ValueError(_EMPTY)
    return value


_EMPTY = "is empty, and whoever gives no secret would have the right one: give a secret, or remove the setting"
Secret = Annotated[SecretStr, AfterValidator(_require_content)]
"""A secret's text. An empty one is refused, because everybody has it."""


class Part(BaseModel):
    """A section: no unknown setting, never changed."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def secret(setting: str, value: SecretStr | None, file: Path | None) -> str | None:
    """Return a setting that may stand in a file of its own."""
    if file is not None:
        return first_line(f"{setting}_file", file)
    return value.get_secret_value() if value else None


def secret_command(setting: str, arguments: tuple[str, ...]) -> SecretCommand | None:
    """Return the command that gives a secret; None without one."""
    return SecretCommand(setting, arguments) if arguments else None


def require_one_way(section: str, part: Part, *names: str) -> None:
    """Refuse a secret that comes from more than one place."""
    if len(given := [name for name in names if getattr(part, name)]) > 1:
        raise ValueError(f"{section} has the same secret twice: set one of {', '.join(given)}")


def first_line(setting: str, path: Path) -> str:
    """Return the secret that is the first line of the file that the setting names."""
    try:
        line = path.read_text().partition("\n")[0]
    except OSError as error:
        raise UsageError(f"{setting} names {path}, which cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{setting} names {path}, which is no text in UTF-8: write the secret into it") from None
    if not line.strip():
        raise UsageError(f"{setting} names {path}, whose first line {_EMPTY}")
    return line


def require_secret_options(options: Mapping[str, Any]) -> None:
    """Refuse secrets among librdkafka's options that are empty."""
    for name, value in options.items():
        if SECRET_OPTION.search(name) and not str(value).strip():
            raise UsageError(f"kafka.options has {name!r}, which {_EMPTY}")
