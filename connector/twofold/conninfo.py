"""A connection string whose password comes from a command, and whose server may be a standby."""

from __future__ import annotations

from twofold_common.secret_command import SecretCommand


class Conninfo(str):
    """libpq's connection string, with what its text cannot hold.

    It is text wherever an address is read from it; only who connects asks the command.
    """

    __slots__ = ("password_command", "primary")

    password_command: SecretCommand | None
    """The command that gives each connection its password."""
    primary: Conninfo | None
    """Where the primary is, if the server is a standby and the configuration says it."""

    def __new__(cls, text: str, password_command: SecretCommand | None, primary: Conninfo | None = None) -> Conninfo:
        made = super().__new__(cls, text)
        made.password_command = password_command
        made.primary = primary
        return made


def password_command_of(conninfo: str) -> SecretCommand | None:
    """Return the command that gives the password; None if the text has all there is."""
    return conninfo.password_command if isinstance(conninfo, Conninfo) else None


def primary_of(conninfo: str) -> Conninfo | None:
    """Return the connection string of the server's primary, if one is configured."""
    return conninfo.primary if isinstance(conninfo, Conninfo) else None
