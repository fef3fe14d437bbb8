"""What an error at a replication session's start means: a person must act, or the next try may
do.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import psycopg
import pytest
from psycopg import errors

from twofold.errors import Refused, RunEnded, SetupError, Unreachable
from twofold.source.connection import connect_error
from twofold.source.diagnosis import skipped_publication, start_error, stream_error


@pytest.mark.parametrize(
    "error",
    [
        errors.AdminShutdown("terminating connection due to unexpected postmaster exit"),
        errors.CrashShutdown("terminating connection because of crash of another server process"),
        errors.CannotConnectNow("the database system is starting up"),
        errors.ConnectionFailure("the connection is gone"),
        psycopg.OperationalError("server closed the connection unexpectedly"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_server_that_goes_away_when_the_slot_is_asked_for_is_tried_again(error: psycopg.Error) -> None:
    told = start_error("dbname=nowhere", "shop", error)
    assert isinstance(told, Unreachable)
    assert str(error) in str(told)


def test_what_only_a_person_can_repair_is_told_with_its_remedy() -> None:
    told = start_error("user=carrier", "shop", errors.InsufficientPrivilege("must be superuser or replication role"))
    assert isinstance(told, SetupError)
    assert 'ALTER ROLE "carrier" REPLICATION' in str(told)


@pytest.mark.parametrize(
    ("said", "statement"),
    [
        ('FATAL: role "carrier" is not permitted to log in', 'ALTER ROLE "carrier" LOGIN;'),
        ('FATAL: permission denied for database "bank"', 'GRANT CONNECT ON DATABASE "bank" TO "carrier";'),
        ('FATAL: database "bank" is not currently accepting connections', "ALTER DATABASE"),
    ],
)
def test_a_missing_right_to_connect_has_its_statement(said: str, statement: str) -> None:
    told = connect_error("host=db dbname=bank user=carrier", psycopg.OperationalError(said))
    assert isinstance(told, SetupError)
    assert statement in str(told)


def test_a_server_without_a_free_connection_is_not_told_to_be_started() -> None:
    told = connect_error("host=db dbname=bank", psycopg.OperationalError("FATAL: sorry, too many clients already"))
    assert isinstance(told, Unreachable)
    assert "max_connections" in str(told)
    assert "start PostgreSQL" not in str(told)


def test_an_expired_certificate_is_not_a_wrong_authority() -> None:
    said = "SSL error: certificate verify failed: certificate has expired"
    told = connect_error("host=db dbname=bank", psycopg.OperationalError(said))
    assert "renew the server's certificate" in str(told)
    assert "sslrootcert" not in str(told)


@pytest.mark.parametrize("said", ['publication "shop" does not exist', "Publikation »shop« existiert nicht"])
def test_a_publication_that_is_gone_is_refused_in_every_language(said: str) -> None:
    told = stream_error("dbname=nowhere", "slot", errors.UndefinedObject(said), publication="shop")
    assert isinstance(told, Refused)
    assert said in str(told)
    other = errors.UndefinedObject("Typ »money« existiert nicht")
    assert isinstance(stream_error("dbname=nowhere", "slot", other, publication="shop"), RunEnded)


@pytest.mark.parametrize(
    ("severity", "sqlstate", "said", "is_told"),
    [
        ("WARNING", "55000", 'skipped loading publication "shop"', True),
        ("WARNING", "55000", "загрузка публикации «shop» пропущена", True),
        ("WARNING", "55000", "что-то другое", False),
        ("WARNING", "01000", "«shop»", False),
        ("NOTICE", "55000", "«shop»", False),
    ],
)
def test_a_publication_that_is_skipped_is_told_in_every_language(
    severity: str, sqlstate: str, said: str, *, is_told: bool
) -> None:
    """PostgreSQL 18 goes on without it, and the changes of its tables are gone."""
    warning = SimpleNamespace(
        severity="ВНИМАНИЕ", severity_nonlocalized=severity, sqlstate=sqlstate, message_primary=said
    )
    told = skipped_publication(cast("Any", warning), "shop")
    assert isinstance(told, Refused) == is_told
