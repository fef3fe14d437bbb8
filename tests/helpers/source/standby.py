"""A physical standby of a PostgreSQL server on this machine, made by the backup functions:
pg_basebackup is not among the binaries that can be fetched.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import psycopg

from fixtures.connector import Installation, wait_until
from twofold.stack import PostgresServer, server_files

SLOT = "standby"
"""The standby's slot on its primary; `synchronized_standby_slots` may name it from the beginning.
"""
_RECREATED = {"pg_wal", "pg_replslot", "pg_dynshmem", "pg_stat_tmp", "pg_notify", "pg_snapshots", "pg_subtrans"}


def standby_of(primary: PostgresServer, folder: Path, slot: str = SLOT) -> PostgresServer:
    """A started standby that follows the primary, its failover slots as well where it has them.

    Who asks for it stops it.
    """
    synced = {"sync_replication_slots": "on"} if primary.version >= 17 else {}
    standby = PostgresServer(
        folder,
        version=str(primary.version),
        settings={
            "primary_conninfo": primary.dsn(),
            "primary_slot_name": slot,
            "hot_standby_feedback": "on",
            "wal_receiver_status_interval": "1s",
            "wal_retrieve_retry_interval": "200ms",
            **synced,
        },
    )
    source, copy = primary.folder / "data", folder / "data"

    def left_out(where: str, names: list[str]) -> set[str]:
        if Path(where) == source:
            return {"postmaster.pid", "postmaster.opts"} & set(names)
        return set(names) if Path(where).parent == source and Path(where).name in _RECREATED else set()

    with psycopg.connect(primary.dsn(), autocommit=True) as session:
        session.execute("SELECT pg_create_physical_replication_slot(%s, true)", (slot,))
        session.execute("SELECT pg_backup_start('standby', true)")
        shutil.copytree(source, copy, ignore=left_out)
        label = session.execute("SELECT labelfile FROM pg_backup_stop(false)").fetchone()
    assert label is not None
    (copy / "backup_label").write_text(label[0])
    (copy / "standby.signal").touch()
    if (user := server_files.server_user()) is not None:
        for path in (folder, copy, *copy.rglob("*")):
            shutil.chown(path, user)
    standby.start()
    return standby


def promote(standby: PostgresServer) -> None:
    ask(standby, "SELECT pg_promote()")
    wait_until(lambda: not ask(standby, "SELECT pg_is_in_recovery()"), 60, "it is promoted")


@dataclass
class ServerPair:
    """A primary, its standby, and a connector. The connector's `conninfo` leads to where the tests
    write.
    """

    primary: PostgresServer
    standby: PostgresServer
    here: Installation

    def wait_for_replay(self) -> None:
        """Until the standby has replayed all that the primary has."""
        written = ask(self.primary, "SELECT pg_current_wal_flush_lsn()")
        wait_until(lambda: ask(self.standby, f"SELECT pg_last_wal_replay_lsn() >= '{written}'"), 60, "it has replayed")

    def fail_over(self) -> None:
        """The primary is dead; the standby takes its place, and the tests write there."""
        self.primary.kill()
        promote(self.standby)
        self.here.conninfo = self.standby.dsn()


def ask(server: PostgresServer, query: str) -> object:
    """The one value that it gives."""
    with psycopg.connect(server.dsn(), autocommit=True) as session:
        row = session.execute(query.encode()).fetchone()
        return row[0] if row else None
