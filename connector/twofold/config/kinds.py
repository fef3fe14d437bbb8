"""Kinds of settings: names, addresses, secrets that may stand in files of their own."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, SecretStr, StringConstraints

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
SECRET_OPTION = re.compile(r"password|secret|\.key\.pem|sasl\.oauthbearer\.(config|assertion)|sasl\.jaas")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


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
    """Return the first line of the file that the setting names."""
    try:
        return path.read_text().partition("\n")[0]
    except OSError as error:
        raise UsageError(f"{setting} names {path}, which cannot be read: {error.strerror}") from None
