"""Creates and removes Twofold's publication and slot in the source. It writes nothing else there.

Creating a slot waits for every running transaction in any database of the server, prepared ones
included. `create_slot` reports these transactions, and gives up after a limit without leaving
anything. A kill during the creation leaves nothing either: the server removes an unfinished slot
with its session. `drop` removes only a publication that `create_publication` created, and that no
other connector reads: its comment shows both.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass

import psycopg
from psycopg import pq, sql

from twofold.errors import SetupError, Unreachable, UsageError
from twofold.source import ddl_messages
from twofold.source.connection import PlainConnection, connect
from twofold.source.diagnosis import error_text, foreign_slot, start_error
from twofold.source.flaws import TableFlaw, find_flaws
from twofold.source.identity import prepared_transactions, slot_state
from twofold.source.locks import Blocker, blockers
from twofold.source.primary import NoPrimary, connect_to_primary, is_standby
from twofold.source.primary_snapshots import PrimarySnapshots
from twofold.source.published_tables import publication_exists
from twofold.source.shared_objects import SharedObject, changing
from twofold_common.positions import Lsn
from twofold_common.table_names import sql_identifier

WATCH_INTERVAL_S = 0.5
"""How often a waiting creation checks which transactions block it."""
_READ_WRITE = "SET TRANSACTION READ WRITE"
"""The prefix of every write, for servers with default_transaction_read_only on."""
REPLAY_WAIT_S, REPLAY_CHECK_S = 60.0, 0.1
"""How long a standby may take to replay what was just created on its primary."""
DROP_WAIT_S = 5.0
"""How long a reset waits until the walsender of a client that has gone notices."""


@dataclass(frozen=True, slots=True)
class PublicationContent:
    """A publication's content: either all tables, or tables (schema and name) and whole schemas."""

    tables: tuple[tuple[str, str], ...] = ()
    schemas: tuple[str, ...] = ()
    all_tables: bool = False
    via_partition_root: bool = True


@dataclass(frozen=True, slots=True)
class SlotLoss:
    """The loss that removing a slot causes: shown before the removal."""

    slot: str
    database: str
    unconfirmed_bytes: int
    """WAL written after the last confirmed position; its published changes would never be sent."""
    in_doubt: tuple[str, ...]
    """The gids prepared in this database: their outcome would never be streamed."""
    in_doubt_unknown: str
    """The reason why the gids are not known; else empty."""
    active_pid: int | None

    def __str__(self) -> str:
        lines = [
            f"slot {self.slot!r} of database {self.database}: {self.unconfirmed_bytes} bytes of WAL are unconfirmed and would never be sent"
        ]
        if self.in_doubt:
            lines.append(
                f"prepared transactions whose outcome would never arrive: {', '.join(map(repr, self.in_doubt))}"
            )
        if self.in_doubt_unknown:
            lines.append(
                f"prepared transactions whose outcome would never arrive are not known: {self.in_doubt_unknown}"
            )
        if self.active_pid is not None:
            lines.append(f"process {self.active_pid} is using the slot now")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Removal:
    """The result of a reset: the removed objects, and the statements that are left to a person."""

    removed: tuple[str, ...]
    left: tuple[str, ...] = ()
    shared_with: tuple[str, ...] = ()
    """The slots of other connectors that read the publication, which stays for them."""


def shared_publication(name: str) -> SharedObject:
    """Return the publication as connectors share it."""
    return SharedObject("PUBLICATION", name, "made by twofold init: ")


def create_publication(conninfo: str, name: str, published: PublicationContent, slot: str) -> bool:
    """Create the publication for this slot. Return False, and change nothing, if a publication of
    this name exists.

    The publication is created on the primary. A standby has it when the call returns.
    """
    with connect(conninfo) as connection:
        if publication_exists(connection, name):
            return False
    with _connect_to_publish(conninfo, name, published) as connection:
        if is_new := not publication_exists(connection, name):
            with _created(connection, name, published):
                connection.execute(shared_publication(name).comment({slot}))
    _wait_for_publication(conninfo, name)
    return is_new


def note_reader(conninfo: str, publication: str, slot: str) -> None:
    """Note that this slot reads the publication, if `init` has made it: another connector's reset
    then leaves it. SetupError: only its owner may.
    """
    shared = shared_publication(publication)
    with connect(conninfo) as connection:
        readers = shared.users(connection)
    if readers is None or slot in readers:
        return
    try:
        with changing(conninfo) as primary:
            if (readers := shared.users(primary)) is not None:
                primary.execute(shared.comment({*readers, slot}))
    except psycopg.errors.InsufficientPrivilege as error:
        raise SetupError(error_text(error)) from error


def _connect_to_publish(conninfo: str, name: str, published: PublicationContent) -> PlainConnection:
    try:
        return connect_to_primary(conninfo)
    except NoPrimary as error:
        raise SetupError(
            f"publication {name!r} does not exist, and a standby cannot create it: {error.what}; remedy: on the primary, "
            f"{_publication(name, published).as_string(None)}; -- or set source.primary_dsn"
        ) from error


def _wait_for_publication(conninfo: str, name: str) -> None:
    """Wait until the server has the publication, which its primary has."""
    deadline = time.monotonic() + REPLAY_WAIT_S
    with connect(conninfo) as connection:
        while not publication_exists(connection, name):
            if time.monotonic() >= deadline:
                raise Unreachable(
                    f"the primary has publication {name!r}, and the standby has not replayed it within {REPLAY_WAIT_S:.0f} s; "
                    "remedy: see pg_stat_replication on the primary, and run twofold init again"
                )
            time.sleep(REPLAY_CHECK_S)


def flaws_if_created(conninfo: str, name: str, published: PublicationContent | None) -> tuple[TableFlaw, ...]:
    """Return the flaws of the publication, or those that it would have."""
    with as_if_created(conninfo, name, published) as (connection, _):
        return find_flaws(connection, name)


@contextmanager
def as_if_created(
    conninfo: str, name: str, published: PublicationContent | None
) -> Iterator[tuple[PlainConnection, bool]]:
    """Give a session in which the publication exists, and whether it exists outside as well.

    A publication that is created for this is rolled back.
    """
    with connect(conninfo) as connection:
        if published is None or publication_exists(connection, name):
            yield connection, True
            return
    with _connect_to_publish(conninfo, name, published) as connection:
        if publication_exists(connection, name):  # and the standby has not replayed it
            yield connection, True
            return
        with _created(connection, name, published, keep=False):
            yield connection, False


@contextmanager
def _created(
    connection: PlainConnection, name: str, published: PublicationContent, *, keep: bool = True
) -> Iterator[None]:
    """Create the publication in a transaction, which ends with the block."""
    try:
        with connection.transaction(force_rollback=not keep):
            connection.execute(_READ_WRITE)
            connection.execute(_publication(name, published))
            yield
    except psycopg.errors.InsufficientPrivilege as error:
        remedy = (
            "name the tables one by one in source.tables, or let a superuser run CREATE PUBLICATION and remove source.tables"
            if published.all_tables or published.schemas
            else "run `twofold doctor`, which names the GRANT or the owner"
        )
        raise SetupError(f"publication {name!r}: {error_text(error)}; remedy: {remedy}") from error
    except psycopg.OperationalError as error:
        raise Unreachable(f"publication {name!r}: {error_text(error)}") from error
    except psycopg.Error as error:
        raise UsageError(f"cannot create publication {name!r}: {error_text(error)}") from error


def _publication(name: str, published: PublicationContent) -> sql.Composed:
    if published.all_tables:
        scope: sql.Composable = sql.SQL("FOR ALL TABLES")
    elif published.tables or published.schemas:
        members = [sql.SQL("TABLE {}").format(sql.Identifier(*table)) for table in published.tables]
        members += [sql.SQL("TABLES IN SCHEMA {}").format(sql.Identifier(schema)) for schema in published.schemas]
        scope = sql.SQL("FOR ") + sql.SQL(", ").join(members)
    else:
        raise UsageError(f"publication {name!r} would be empty: list tables, schemas or * in source.tables")
    return sql.SQL("CREATE PUBLICATION {} {} WITH (publish_via_partition_root = {})").format(
        sql.Identifier(name), scope, sql.Literal(published.via_partition_root)
    )


def create_slot(
    conninfo: str,
    slot: str,
    *,
    two_phase: bool,
    failover: bool = False,
    wait_limit_s: float,
    on_wait: Callable[[tuple[Blocker, ...]], None],
    say: Callable[[str], None] = lambda _: None,
) -> Lsn:
    """Create the slot and return where its stream starts.

    While the creation waits, it calls `on_wait` repeatedly with the transactions that block it. On
    a standby it waits until the primary logs its running transactions: `say` tells what a person
    can do, if the primary cannot be asked to log them.

    SetupError: the server cannot have such a slot. Unreachable: the wait was longer than the limit,
    or the server went away.
    """
    with connect(conninfo) as maker, connect(conninfo) as watcher, ExitStack() as opened:
        snapshots = opened.enter_context(closing(PrimarySnapshots(conninfo, say))) if is_standby(watcher) else None
        if failover and maker.info.server_version < 170000:
            raise SetupError("a failover slot needs PostgreSQL 17: remove source.failover, or upgrade the server")
        call = sql.SQL(
            "SELECT lsn FROM pg_catalog.pg_create_logical_replication_slot({}, 'pgoutput', false, {}{})"
        ).format(sql.Literal(slot), sql.Literal(two_phase), sql.SQL(", true") if failover else sql.SQL(""))
        try:
            maker.pgconn.send_query(call.as_bytes(maker))
            waiting = _wait_watching(maker, watcher, snapshots, wait_limit_s, on_wait)
            result = maker.pgconn.get_result()
            while maker.pgconn.get_result() is not None:
                pass  # read the answer to its end, which leaves the connection idle
        except psycopg.OperationalError as error:  # from libpq itself, which `PlainConnection` does not see
            maker.close()
            raise start_error(conninfo, slot, error) from error
        except KeyboardInterrupt:
            maker.close()  # which psycopg could not roll back, and would say so
            raise
        if result is None or result.status != pq.ExecStatus.TUPLES_OK:
            refusal = psycopg.errors.error_from_result(result) if result else psycopg.OperationalError("no answer")
            if isinstance(refusal, psycopg.errors.QueryCanceled):
                names = "; ".join(map(str, waiting)) or "transactions that have ended since"
                if snapshots is not None and not waiting:
                    names = f"a record of the primary's running transactions ({snapshots.statement})"
                raise Unreachable(
                    f"slot {slot!r} was not created within {wait_limit_s:.0f} s: it waits for {names}; "
                    "remedy: end these transactions (COMMIT PREPARED or ROLLBACK PREPARED), or raise source.slot_wait"
                ) from refusal
            raise start_error(conninfo, slot, refusal) from refusal
    state = slot_state(conninfo, slot)
    if state is None:
        raise Unreachable(f"slot {slot!r} was created, but somebody has dropped it since")
    return state.confirmed_flush


def _wait_watching(
    maker: PlainConnection,
    watcher: PlainConnection,
    snapshots: PrimarySnapshots | None,
    wait_limit_s: float,
    on_wait: Callable[[tuple[Blocker, ...]], None],
) -> tuple[Blocker, ...]:
    """Wait for the maker's answer, and cancel the query past the limit.

    Return the transactions that blocked it last.
    """
    deadline = time.monotonic() + wait_limit_s
    waiting: tuple[Blocker, ...] = ()
    while not _answered(maker.pgconn, WATCH_INTERVAL_S):
        waiting = snapshots.log() if snapshots is not None else blockers(watcher, [maker.info.backend_pid])
        if waiting:
            on_wait(waiting)
        if time.monotonic() >= deadline:
            maker.cancel_safe()
            _answered(maker.pgconn, DROP_WAIT_S)
            break
    return waiting


def _answered(pgconn: pq.abc.PGconn, wait_s: float) -> bool:
    """Return whether the query's result arrived within `wait_s`."""
    pgconn.flush()
    deadline = time.monotonic() + wait_s
    while pgconn.is_busy():
        if (left := deadline - time.monotonic()) <= 0:
            return False
        poll = select.poll()
        poll.register(pgconn.socket, select.POLLIN)
        poll.poll(left * 1000)
        pgconn.consume_input()
    return True


def describe_loss(conninfo: str, slot: str) -> SlotLoss | None:
    """Describe the loss that `drop` would cause; None if there is no such slot.

    UsageError: it belongs to another database.
    """
    if foreign := foreign_slot(conninfo, slot):
        raise foreign
    state = slot_state(conninfo, slot)
    if state is None:
        return None
    in_doubt: tuple[str, ...] = ()
    unknown = ""
    try:
        in_doubt = tuple(p.gid for p in prepared_transactions(conninfo, all_databases=False))
    except (SetupError, Unreachable) as error:  # of the primary: the slot's own server has just answered
        unknown = str(error)
    with connect(conninfo) as connection:
        row = connection.execute(
            "SELECT pg_catalog.pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()"
            " ELSE pg_current_wal_lsn() END, confirmed_flush_lsn)::bigint"
            " FROM pg_catalog.pg_replication_slots WHERE slot_name = %s",
            (slot,),
        ).fetchone()
    return SlotLoss(
        slot=slot,
        database=state.database or "",
        unconfirmed_bytes=max(0, row[0] or 0) if row else 0,
        in_doubt=in_doubt,
        in_doubt_unknown=unknown,
        active_pid=state.active_pid,
    )


def drop(conninfo: str, slot: str, publication: str) -> Removal:
    """Remove the slot, and the publication if it is ours and nobody else's; return what was
    removed.

    A missing object is no error, so an interrupted reset can be repeated. A publication that only
    an absent primary could drop is left, with the statement. SlotBusy: a client still uses the
    slot. UsageError: the slot belongs to another database, and so may all the rest.
    """
    if foreign := foreign_slot(conninfo, slot):
        raise foreign
    removed, left = [], []
    with connect(conninfo) as connection:
        if _drop_slot(conninfo, connection, slot):
            removed.append(f"slot {slot}")
        statement, others = _leave_publication(connection, publication, slot)
    if statement is not None:
        try:
            with changing(conninfo) as primary:
                now, others = _leave_publication(primary, publication, slot)
                if now is not None:
                    primary.execute(now)
        except psycopg.errors.InsufficientPrivilege as error:
            raise SetupError(
                f"publication {publication!r}: {error_text(error)}; "
                f"remedy: let its owner run {statement.as_string(None)}; and then twofold reset again"
            ) from error
        except (NoPrimary, Unreachable):
            left.append(f"{statement.as_string(None)};")
        else:
            removed += [f"publication {publication}"] if now is not None and not others else []
    try:
        if ddl_messages.remove(conninfo, slot):
            removed.append("event triggers and schema twofold")
    except (NoPrimary, Unreachable):
        left += [f"{statement};" for statement in ddl_messages.REMOVE]
    return Removal(tuple(removed), tuple(left), tuple(sorted(others)))


def _leave_publication(
    connection: PlainConnection, publication: str, slot: str
) -> tuple[sql.Composed | None, set[str]]:
    """Return the statement by which the slot leaves the publication, if there is one, and the slots
    of others that read it.
    """
    shared = shared_publication(publication)
    readers = shared.users(connection)
    others = (readers or set()) - {slot}
    if readers is None or (others and slot not in readers):
        return None, others
    drops = sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(publication))
    return shared.comment(others) if others else drops, others


def end_holder(conninfo: str, slot: str) -> int | None:
    """End the server process that serves the slot's client; return its pid, if there is one.

    This is for a dead client whose connection the server has not given up yet.
    """
    with connect(conninfo) as connection:
        try:
            row = connection.execute(
                "SELECT active_pid, pg_catalog.pg_terminate_backend(active_pid, %s)"
                " FROM pg_catalog.pg_replication_slots WHERE slot_name = %s AND active",
                (int(DROP_WAIT_S * 1000), slot),
            ).fetchone()
        except psycopg.errors.InsufficientPrivilege as error:
            raise SetupError(
                f"this user may not end the process that holds slot {slot!r}: {error_text(error)}; "
                f"remedy: end it as another user, or GRANT pg_signal_backend TO {sql_identifier(connection.info.user)};"
            ) from error
    return row[0] if row else None


def _drop_slot(conninfo: str, connection: PlainConnection, slot: str) -> bool:
    deadline = time.monotonic() + DROP_WAIT_S
    while True:
        try:
            connection.execute("SELECT pg_catalog.pg_drop_replication_slot(%s)", (slot,))
        except psycopg.errors.UndefinedObject:
            return False
        except psycopg.errors.ObjectInUse as error:
            if time.monotonic() >= deadline:
                raise start_error(conninfo, slot, error) from error
            time.sleep(0.1)
        except psycopg.Error as error:
            raise start_error(conninfo, slot, error) from error
        else:
            return True
