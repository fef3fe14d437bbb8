"""Opens every connection to PostgreSQL, and explains why an attempt failed.

`conninfo` is anything that libpq accepts: keywords or a URL, service files, TLS, several hosts.
If a command gives its password (`twofold.conninfo`), the command is asked for each connection.
Column values arrive as text or in binary form, and their text depends on session settings. Every
connection that reads values therefore uses `SETTINGS`: a row has the same bytes whether it was
streamed or copied.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from twofold.conninfo import Conninfo, password_of
from twofold.errors import SetupError, TwofoldError, Unreachable
from twofold.source.service import POSTGRESQL, Service, ask
from twofold_common.table_names import sql_identifier

SETTINGS = {
    "datestyle": "ISO",
    "intervalstyle": "postgres",
    "timezone": "UTC",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "search_path": "",  # names inside values (such as regclass) are always qualified
    "quote_all_identifiers": "off",  # it changes the text of regclass and regtype
    "array_nulls": "on",  # without it a load's '{NULL}'::text[] would be the text NULL
    "client_min_messages": "warning",  # only a warning says that the server skips a publication
    # A standby refuses serializable; elsewhere a transaction would not see what it has waited for.
    "default_transaction_isolation": "read committed",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_session_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
}

MIN_SERVER_VERSION = 150000
SENT_BY_LIBPQ = ("PGDATESTYLE", "PGTZ", "PGGEQO")
"""The variables of the environment that libpq sends as settings of the session. The server applies
them after the options of the login, so they would win over `SETTINGS`.
"""
TRANSACTION_TIMEOUT_VERSION = 170000
"""The first server with `transaction_timeout`. It would end a walsender too, because decoding runs
each transaction inside one of its own.
"""
CONNECT_TIMEOUT_S = 10
"""The default where the connection string has none. The run's back-off retries a server that
takes longer."""

NOTICE_A_LOST_PEER = {
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "4",
    "tcp_user_timeout": "30000",
}
"""The defaults where the connection string has none. They detect a vanished server or network
within half a minute; the defaults of Linux take hours. The wait for a live server, for example for
a lock, does not end by them.
"""


DENIED = "authentication failed"
"""The server's words for a wrong or expired password: libpq gives no SQLSTATE."""
SHUTTING_DOWN = "57P"
"""The SQLSTATE class of a server that ends a session: it shuts down, crashed, or starts."""
RECOVERY_CONFLICT = "40001"
"""The SQLSTATE of a query that a standby ends because its replay does not wait longer. A primary
gives it to those that write in a serializable transaction, which nobody does here."""


class PlainConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that raises Unreachable when the server goes away during any query.

    A run recovers from that error; a command reports it.
    """

    where = "PostgreSQL"

    def wait(self, *arguments: Any, **named: Any) -> Any:
        try:
            return super().wait(*arguments, **named)
        except psycopg.OperationalError as error:
            if self.closed or (error.sqlstate or "").startswith(SHUTTING_DOWN):
                self.close()  # libpq notices the end of a terminated session only later
                raise Unreachable(f"{self.where} went away: {' '.join(str(error).split())}") from error
            if error.sqlstate == RECOVERY_CONFLICT:
                raise Unreachable(f"{self.where} ended a query: {' '.join(str(error).split())}") from error
            raise


def connect(conninfo: str, application_name: str = "twofold", *, replication: bool = False) -> PlainConnection:
    """Open a connection in autocommit.

    With `replication` the connection takes replication commands and simple queries only. The
    process loses the variables `SENT_BY_LIBPQ`.
    """
    for variable in SENT_BY_LIBPQ:
        with contextlib.suppress(KeyError):  # it is not set, or another thread took it out
            del os.environ[variable]
    given = conninfo_to_dict(conninfo)
    own = " ".join(f"-c {name}={_escape_blanks(value)}" for name, value in SETTINGS.items())
    parameters: dict[str, str] = {
        "application_name": application_name,
        "client_encoding": "UTF8",
        "options": f"{given.get('options') or ''} {own}".strip(),
        "load_balance_hosts": "disable",  # the stream and the sessions beside it meet the same server
    }
    timeouts = {"connect_timeout": str(CONNECT_TIMEOUT_S), **NOTICE_A_LOST_PEER}
    parameters |= {name: value for name, value in timeouts.items() if name not in given}
    if replication:
        parameters["replication"] = "database"
    try:
        connection = _login(conninfo, parameters, replication=replication)
    except psycopg.OperationalError as error:
        raise connect_error(conninfo, error) from error
    connection.where = f"PostgreSQL at {address(conninfo)}"
    if connection.info.server_version < MIN_SERVER_VERSION:
        version = connection.info.parameter_status("server_version")
        connection.close()
        raise SetupError(f"PostgreSQL {version} at {address(conninfo)} is too old: Twofold needs 15 or later")
    if connection.info.server_version >= TRANSACTION_TIMEOUT_VERSION:
        # Not one of SETTINGS: an earlier server refuses a login whose options name this setting.
        connection.execute("SET transaction_timeout = 0")
    return connection


def _escape_blanks(value: str) -> str:
    """Return the value for the options of a login, which the server parts at blanks."""
    return value.replace(" ", r"\ ")


def _login(conninfo: str, parameters: dict[str, str], *, replication: bool) -> PlainConnection:
    """Connect, with the password of this moment.

    A password may change between the question and the login: the password is asked for once more
    then.
    """
    password = password_of(conninfo)
    for is_last in (password is None, True):
        secret = {} if password is None else {"password": password.ask()}
        try:
            return PlainConnection.connect(
                make_conninfo(conninfo, **parameters, **secret),
                autocommit=True,
                cursor_factory=psycopg.ClientCursor if replication else psycopg.Cursor,
                prepare_threshold=None,
            )
        except psycopg.OperationalError as error:
            if is_last or DENIED not in str(error):
                raise
    raise AssertionError("the last attempt returns or raises")


def to_database(conninfo: str, **parameters: str) -> str:
    """Return a connection string with these parameters in place of its own."""
    return Conninfo(make_conninfo(conninfo, **parameters), password_of(conninfo))


def service_at(conninfo: str) -> Service:
    """Recognise the service behind a connection string; PostgreSQL if it cannot be asked."""
    try:
        with connect(conninfo) as connection:
            return ask(connection)
    except (SetupError, Unreachable):
        return POSTGRESQL


def address(conninfo: str) -> str:
    """Return where a connection string points to, for messages; never the password."""
    given = conninfo_to_dict(conninfo)
    host = given.get("host") or given.get("hostaddr") or "the default host"
    return f"{host}:{given.get('port') or 5432}/{given.get('dbname') or given.get('user') or ''}"


PAST_THE_POOLER = "give source.dsn the host and port of PostgreSQL itself"

# libpq gives no SQLSTATE for a refused start-up: these pieces of its own and the server's messages
# are the only sign. A server with lc_messages in another language falls through to Unreachable,
# which repeats the server's message.
_REMEDIES = (
    ("pg_hba.conf", "add a line for this host, user and database to pg_hba.conf"),
    (DENIED, "correct the user in source.dsn, or its password (source.password_file)"),
    ("is not permitted to log in", "ALTER ROLE {user} LOGIN;"),
    ("permission denied for database", "GRANT CONNECT ON DATABASE {database} TO {user};"),
    ("is not currently accepting connections", "ALTER DATABASE {database} ALLOW_CONNECTIONS true;"),
    ("no password supplied", "set source.password_file to a file with the password"),
    ("exceeds max_wal_senders", "end another replication client, or raise max_wal_senders and restart PostgreSQL"),
    ("certificate has expired", "renew the server's certificate; if it is valid, set this machine's clock"),
    (
        "certificate verify failed",
        "set sslrootcert in source.dsn to a file with the certificate of the authority that signed the server certificate",
    ),
    (
        "root certificate file",
        "set sslrootcert in source.dsn to a file with the certificate of the authority that signed the server certificate",
    ),
    (
        "does not match host name",
        "set host in source.dsn to a name in the certificate, or give the server a certificate for this name",
    ),
    ("does not support SSL", "ALTER SYSTEM SET ssl = on, with ssl_cert_file and ssl_key_file, and restart PostgreSQL"),
    ("recovery is in progress", "connect to the primary, or raise the standby to 16 or later"),
    ("unsupported startup parameter", f"this is a connection pooler: {PAST_THE_POOLER}"),
)
_NO_ROOM = ("too many clients already", "remaining connection slots", "too many connections for")
"""The server answers, and has no connection left: the next attempt may get one."""
_MORE_ROOM = (
    "end sessions that nobody needs, or raise max_connections, or the CONNECTION LIMIT of the role or the database"
)
_MAY_NOT_REPLICATE = ("superuser or replication role", "permission denied to start WAL sender")
_NO_SUCH = (
    ("role", "CREATE ROLE {user} LOGIN REPLICATION; -- or correct the user in source.dsn"),
    ("database", "correct the database's name in source.dsn"),
)
_NOISE = (
    "connection failed: ",
    "connection is bad: ",
    " Is the server running on that host and accepting TCP/IP connections?",
    " Is the server running locally and accepting connections on that socket?",
)
"""Words of psycopg and libpq around the cause."""


def user_of(conninfo: str) -> str:
    """Return the role that a connection string names, as SQL writes it."""
    user = conninfo_to_dict(conninfo).get("user")
    return sql_identifier(str(user)) if user else "<user>"


def _database_of(conninfo: str) -> str:
    """Return the database that a connection string names, as SQL writes it."""
    given = conninfo_to_dict(conninfo)
    return sql_identifier(str(given.get("dbname") or given.get("user") or "<database>"))


def connect_error(conninfo: str, error: psycopg.Error) -> TwofoldError:
    """Return the error for a failed attempt to connect: its meaning, and the repair."""
    message = " ".join(str(error).split())
    for noise in _NOISE:
        message = message.replace(noise, "")
    if "Too many open files" in message:
        return Unreachable(
            f"this process has no file descriptor left for a connection to PostgreSQL at {address(conninfo)}; remedy: raise its limit (LimitNOFILE, ulimit -n);"
            " ls -l /proc/PID/fd shows what has them"
        )
    kind, remedy = _choose_remedy(conninfo, message)
    if remedy:
        return kind(f"PostgreSQL at {address(conninfo)}: {message}; remedy: {remedy}")
    remedy = "start PostgreSQL, or correct host and port in source.dsn"
    if "timeout expired" in message:
        remedy += "; if the server runs, `twofold status` shows the transaction that blocks new sessions"
    return Unreachable(f"PostgreSQL at {address(conninfo)} does not answer: {message}; remedy: {remedy}")


def _choose_remedy(conninfo: str, message: str) -> tuple[type[TwofoldError], str]:
    """Return the remedy for what the server says, and whether a person must act; else nothing."""
    user = user_of(conninfo)
    if any(symptom in message for symptom in _NO_ROOM):
        return Unreachable, _MORE_ROOM
    if (password := password_of(conninfo)) is not None and DENIED in message:
        # The password may have changed since it was given: the next attempt asks again.
        return Unreachable, f"if this stays so, correct {password.setting}, or the user in source.dsn"
    if any(symptom in message for symptom in _MAY_NOT_REPLICATE):
        return SetupError, service_at(conninfo).let_replicate(user)
    known = [remedy for symptom, remedy in _REMEDIES if symptom in message]
    known += [remedy for noun, remedy in _NO_SUCH if f"{noun} " in message and "does not exist" in message]
    return SetupError, known[0].format(user=user, database=_database_of(conninfo)) if known else ""
