"""How this room connects: one place for what every session says of itself, and for what a failed attempt means.

`conninfo` is whatever libpq takes (keywords or a URL; service files, TLS, several hosts). Values of columns arrive as text or
in binary form, and their text depends on settings of the session; so every connection that reads values uses `SETTINGS`, and
the same row has the same bytes whether it was streamed or copied.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from twofold.errors import SetupError, TwofoldError, Unreachable

SETTINGS = {
    "datestyle": "ISO",
    "intervalstyle": "postgres",
    "timezone": "UTC",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "search_path": "",  # names inside of values (regclass and the like) are always qualified
    "client_min_messages": "warning",  # a server that skips a publication says so by a warning only
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_session_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
}

MIN_SERVER_VERSION = 150000
CONNECT_TIMEOUT_S = 10
"""Unless the connection string has its own. A server that takes longer is tried again by the run's back-off."""

NOTICE_A_LOST_PEER = {
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "4",
    "tcp_user_timeout": "30000",
}
"""Unless the connection string has its own. A server that vanished without a word (its machine, the network) is noticed within half a minute; by default Linux takes
hours. A server that is there and lets one wait, for a lock as an example, is not ended by it."""


SHUTTING_DOWN = "57P"
"""SQLSTATEs with which a server ends a session: told to, crashed, starting."""


class PlainConnection(psycopg.Connection[tuple[Any, ...]]):
    """That the server went away is said as such, in whatever question it comes: a run recovers from that, a command reports it."""

    where = "PostgreSQL"

    def wait(self, *arguments: Any, **named: Any) -> Any:
        try:
            return super().wait(*arguments, **named)
        except psycopg.OperationalError as error:
            if self.closed or (error.sqlstate or "").startswith(SHUTTING_DOWN):
                self.close()  # of a session that is told to end libpq sees the end only later
                raise Unreachable(f"{self.where} went away: {' '.join(str(error).split())}") from error
            raise


def connect(conninfo: str, application_name: str = "twofold", *, replication: bool = False) -> PlainConnection:
    """Open a connection in autocommit; with `replication` one that takes replication commands and simple queries only."""
    given = conninfo_to_dict(conninfo)
    own = " ".join(f"-c {name}={value}" for name, value in SETTINGS.items())
    parameters: dict[str, str] = {
        "application_name": application_name,
        "client_encoding": "UTF8",
        "options": f"{given.get('options') or ''} {own}".strip(),
    }
    patience = {"connect_timeout": str(CONNECT_TIMEOUT_S), **NOTICE_A_LOST_PEER}
    parameters |= {name: value for name, value in patience.items() if name not in given}
    if replication:
        parameters["replication"] = "database"
    try:
        connection = PlainConnection.connect(
            make_conninfo(conninfo, **parameters),
            autocommit=True,
            cursor_factory=psycopg.ClientCursor if replication else psycopg.Cursor,
            prepare_threshold=None,
        )
    except psycopg.OperationalError as error:
        raise connect_error(conninfo, error) from error
    connection.where = f"PostgreSQL at {address(conninfo)}"
    if connection.info.server_version < MIN_SERVER_VERSION:
        version = connection.info.parameter_status("server_version")
        connection.close()
        raise SetupError(f"PostgreSQL {version} at {address(conninfo)} is too old: Twofold needs 15 or later")
    return connection


def address(conninfo: str) -> str:
    """Where a connection string points to, for messages; never the password."""
    given = conninfo_to_dict(conninfo)
    host = given.get("host") or given.get("hostaddr") or "the default host"
    return f"{host}:{given.get('port') or 5432}/{given.get('dbname') or given.get('user') or ''}"


# libpq gives no SQLSTATE for a refused start-up; these pieces of its and the server's messages are the only sign there is. A server
# whose lc_messages is another language falls through to Unreachable, which repeats the server's own words.
_REMEDIES = (
    ("pg_hba.conf", "add a line for this host, user and database to pg_hba.conf"),
    ("authentication failed", "mend user or password of the source"),
    ("no password supplied", "give the source a password"),
    ("superuser or replication role", "ALTER ROLE {user} REPLICATION"),
    ("permission denied to start WAL sender", "ALTER ROLE {user} REPLICATION"),
    ("exceeds max_wal_senders", "raise max_wal_senders and restart PostgreSQL, or end another replication client"),
    (
        "certificate verify failed",
        "let sslrootcert name a file with the authority that signed the server's certificate",
    ),
    ("root certificate file", "let sslrootcert name a file with the authority that signed the server's certificate"),
    ("does not match host name", "connect by a name that is in it, or give the server a certificate for this one"),
    ("does not support SSL", "ALTER SYSTEM SET ssl = on, with ssl_cert_file and ssl_key_file, and restart PostgreSQL"),
    ("recovery is in progress", "connect to the primary, or raise the standby to 16 or later"),
)
_NO_SUCH = (("role", "CREATE ROLE {user} LOGIN REPLICATION"), ("database", "mend the database's name in the source"))


def connect_error(conninfo: str, error: psycopg.Error) -> TwofoldError:
    """Say what a failed attempt to connect means for the user."""
    words = " ".join(str(error).split())
    user = conninfo_to_dict(conninfo).get("user") or "<user>"
    for sign, remedy in _REMEDIES:
        if sign in words:
            return SetupError(f"PostgreSQL at {address(conninfo)}: {words}; remedy: {remedy.format(user=user)}")
    for noun, remedy in _NO_SUCH:
        if f"{noun} " in words and "does not exist" in words:
            return SetupError(f"PostgreSQL at {address(conninfo)}: {words}; remedy: {remedy.format(user=user)}")
    hint = "; if it runs, `twofold status` says who keeps new sessions out" if "timeout expired" in words else ""
    return Unreachable(f"PostgreSQL at {address(conninfo)} does not answer: {words}{hint}")
