"""A connection string whose password is elsewhere, and whose server may be a standby."""

from __future__ import annotations

from twofold_common.secret_sources import SecretSource


class Conninfo(str):
    """libpq's connection string, with where its password comes from.

    Whoever needs the address reads the value as text. Only a new connection asks for the password.
    """

    __slots__ = ("password", "primary")

    password: SecretSource | None
    """Gives each connection its password."""
    primary: Conninfo | None
    """The primary's address, if the server is a standby and the configuration has it."""

    def __new__(cls, text: str, password: SecretSource | None, primary: Conninfo | None = None) -> Conninfo:
        made = super().__new__(cls, text)
        made.password = password
        made.primary = primary
        return made


def password_of(conninfo: str) -> SecretSource | None:
    """Return where the password comes from; None if the text has all there is."""
    return conninfo.password if isinstance(conninfo, Conninfo) else None


def primary_of(conninfo: str) -> Conninfo | None:
    """Return the connection string of the server's primary, if one is configured."""
    return conninfo.primary if isinstance(conninfo, Conninfo) else None
