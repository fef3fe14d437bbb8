"""What an error at a replication session's start means: a person must act, or the next try may
do.
"""

from __future__ import annotations

import psycopg
import pytest
from psycopg import errors

from twofold.errors import SetupError, Unreachable
from twofold.source.connection import connect_error
from twofold.source.diagnosis import start_error


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
