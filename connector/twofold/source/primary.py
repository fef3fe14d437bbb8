"""Connects to the primary: the source's own server, or the server of which the source is a physical
standby.

A standby shows neither which transactions are prepared nor who writes to a table. Its snapshots do
not name the running transactions, and nothing can be created there (docs/inside/standby.md). Code
that needs one of these facts asks here. Only plain sessions go to the primary: the stream is the
standby's.
"""

from __future__ import annotations

from twofold.conninfo import primary_of
from twofold.errors import SetupError, Unreachable
from twofold.source.connection import PlainConnection, address, connect

_PRIMARY = """
SELECT pg_catalog.pg_is_in_recovery(), (SELECT system_identifier::text FROM pg_catalog.pg_control_system()),
       CASE WHEN NOT pg_catalog.pg_is_in_recovery()
            THEN ('x' || left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8))::bit(32)::int END
"""


class NoPrimary(SetupError):
    """The server is a standby, and the configuration does not say where its primary is."""

    def __init__(self, conninfo: str) -> None:
        self.what = f"PostgreSQL at {address(conninfo)} is a standby, and source.primary_dsn is not set"
        super().__init__(f"{self.what}; remedy: set source.primary_dsn to the connection string of its primary")


def is_standby(connection: PlainConnection) -> bool:
    """Return whether the server is a standby now."""
    return connection.execute("SELECT pg_catalog.pg_is_in_recovery()").fetchone() == (True,)


def connect_to_primary(conninfo: str, application_name: str = "twofold") -> PlainConnection:
    """Open a plain connection to the primary of the server that `conninfo` leads to.

    Both are on the same timeline: what the connection shows at a position is what the standby
    streams there. NoPrimary, SetupError: the configuration does not lead to the primary.
    Unreachable: the primary does not answer, or the two have parted.
    """
    connection = connect(conninfo, application_name)
    if not is_standby(connection):
        return connection
    connection.close()
    primary = primary_of(conninfo)
    if primary is None:
        raise NoPrimary(conninfo)
    connection = connect(primary, application_name)
    try:
        _require_primary_of(conninfo, primary, connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _require_primary_of(conninfo: str, primary: str, connection: PlainConnection) -> None:
    row = connection.execute(_PRIMARY).fetchone()
    assert row is not None
    in_recovery, system, timeline = row
    where = f"source.primary_dsn leads to {address(primary)}"
    with connect(conninfo, replication=True) as standby:
        identified = standby.execute("IDENTIFY_SYSTEM").fetchone()
    if identified is None:
        raise Unreachable("PostgreSQL did not answer IDENTIFY_SYSTEM")
    if in_recovery:
        raise SetupError(
            f"{where}, which is a standby too; "
            "remedy: name the primary there (several hosts with target_session_attrs=read-write find it)"
        )
    if system != identified[0]:
        raise SetupError(
            f"{where}, which is another database system than {address(conninfo)}: {system}, not {identified[0]}; "
            "remedy: name the primary of that standby in source.primary_dsn"
        )
    if connection.info.dbname != identified[3]:
        raise SetupError(
            f"{where}, another database than source.dsn's; remedy: name the same database in both connection strings"
        )
    if timeline != int(identified[1]):
        raise Unreachable(
            f"{where}, which is on timeline {timeline}, and the standby at {address(conninfo)} is on timeline {identified[1]}; "
            "remedy: let the standby follow that primary, or name its own primary in source.primary_dsn"
        )
