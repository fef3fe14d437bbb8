"""A connection string whose password comes from a command."""

from __future__ import annotations

from twofold_common.secret_command import SecretCommand


class Conninfo(str):
    """libpq's connection string, with the command that gives each connection its password.

    It is text wherever an address is read from it; only who connects asks the command.
    """

    __slots__ = ("password_command",)

    password_command: SecretCommand | None

    def __new__(cls, text: str, password_command: SecretCommand | None) -> Conninfo:
        made = super().__new__(cls, text)
        made.password_command = password_command
        return made


def password_command_of(conninfo: str) -> SecretCommand | None:
    """Return the command that gives the password; None if the text has all there is."""
    return conninfo.password_command if isinstance(conninfo, Conninfo) else None
