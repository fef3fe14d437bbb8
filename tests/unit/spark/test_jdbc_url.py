"""How a database is named, and what the JDBC driver is told of it."""

from __future__ import annotations

import pytest

from twofold_spark.errors import UsageError
from twofold_spark.sources.postgres_connection import build_jdbc_url


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("host=127.0.0.1 port=6000 dbname=shop user=me", "jdbc:postgresql://127.0.0.1:6000/shop?user=me"),
        ("postgresql://me:pw@db/shop", "jdbc:postgresql://db:5432/shop?user=me&password=pw"),
        ("postgresql://me:p%40w@[::1]:6000/my%20shop", "jdbc:postgresql://[::1]:6000/my%20shop?user=me&password=p%40w"),
        ("jdbc:postgresql://db/shop", "jdbc:postgresql://db/shop"),
    ],
)
def test_a_database_is_named_as_people_name_it(given: str, url: str) -> None:
    assert build_jdbc_url(given) == url


@pytest.mark.parametrize(
    "given",
    [
        "postgresql://me@db/shop?sslmode=verify-full&sslrootcert=/etc/my%20ca.crt&application_name=verify&connect_timeout=5",
        "host=db dbname=shop user=me sslmode=verify-full sslrootcert='/etc/my ca.crt' application_name=verify connect_timeout=5",
    ],
)
def test_how_it_is_connected_to_is_passed_on_under_the_drivers_names(given: str) -> None:
    assert build_jdbc_url(given) == (
        "jdbc:postgresql://db:5432/shop?user=me&sslmode=verify-full&sslrootcert=%2Fetc%2Fmy+ca.crt"
        "&ApplicationName=verify&connectTimeout=5"
    )


@pytest.mark.parametrize("given", ["postgresql://db/shop?passfile=x&service=y", "host=db service=y passfile=x"])
def test_what_cannot_be_passed_on_is_refused_by_name(given: str) -> None:
    with pytest.raises(
        UsageError, match=r"^PostgreSQL's JDBC driver does not know passfile, service by that name.*jdbc:postgresql://"
    ):
        build_jdbc_url(given)


@pytest.mark.parametrize("given", ["shop", "postgresql://a:1,b:2/shop", "postgresql://db/shop?sslmode", "host='db"])
def test_what_is_no_database_is_refused(given: str) -> None:
    with pytest.raises(UsageError, match="must be a URL of one host, or"):
        build_jdbc_url(given)


def test_a_sockets_folder_is_refused() -> None:
    for given in ("host=/run dbname=shop", "postgresql:///shop?host=/run"):
        with pytest.raises(UsageError, match="JDBC connects over TCP"):
            build_jdbc_url(given)


@pytest.mark.parametrize(
    "given",
    [
        "postgresql://me:hunter2#a@db/shop",
        "postgresql://me:a/hunter2@db/shop",
        "postgresql://me@db/shop?password=a&hunter2",
        "jbdc:postgresql://me:hunter2@db/shop?user=a",
        "host=db password='hunter2",
    ],
)
def test_an_address_that_is_not_understood_is_not_quoted(given: str) -> None:
    """What is wrong with it may be the password, whose characters are not encoded."""
    with pytest.raises(UsageError, match="percent-encode") as told:
        build_jdbc_url(given)
    assert "hunter2" not in str(told.value)


@pytest.mark.parametrize(
    "given", ["postgresql://me:@db/shop", "host=db password=''", "jdbc:postgresql://db/shop?user=me&password="]
)
def test_an_empty_password_is_refused(given: str) -> None:
    with pytest.raises(UsageError, match="password is empty"):
        build_jdbc_url(given)
