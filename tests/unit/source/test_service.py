"""The table of managed services: how each is recognised, and what its remedies say. No server."""

from __future__ import annotations

from pathlib import Path

import pytest

from twofold.source.service import POSTGRESQL, SERVICES, Service, recognise

ROOT = Path(__file__).parents[3]


def named(part: str) -> Service:
    return next(service for service in SERVICES if part in service.name)


def test_a_server_without_a_sign_is_postgresql_and_gets_its_own_statements() -> None:
    assert recognise(()) is recognise(["postgres"]) is POSTGRESQL
    assert not POSTGRESQL.is_managed
    assert POSTGRESQL.set("wal_level", "logical", restart=True) == (
        "ALTER SYSTEM SET wal_level = logical, and restart PostgreSQL"
    )
    assert POSTGRESQL.let_replicate('"carrier"') == 'ALTER ROLE "carrier" REPLICATION'


@pytest.mark.parametrize("service", SERVICES, ids=lambda each: each.name)
def test_each_sign_alone_is_enough_and_is_of_one_service(service: Service) -> None:
    for sign in service.signs:
        assert recognise([sign]) is service


def test_aurora_has_the_signs_of_rds_and_is_aurora() -> None:
    signs = named("RDS").signs | named("Aurora").signs
    assert recognise(signs).name == "Amazon Aurora PostgreSQL"


@pytest.mark.parametrize("service", SERVICES, ids=lambda each: each.name)
def test_no_remedy_of_a_service_needs_what_its_users_may_not_do(service: Service) -> None:
    for setting in ("wal_level", "max_replication_slots", "max_prepared_transactions", "wal_sender_timeout"):
        said = service.set(setting, "x", restart=True)
        assert "ALTER SYSTEM" not in said
        assert "restart PostgreSQL" not in said
        assert said.endswith(f"({service.page})")


@pytest.mark.parametrize("service", SERVICES, ids=lambda each: each.name)
def test_the_page_that_a_remedy_names_is_there_and_speaks_of_it(service: Service) -> None:
    page = (ROOT / service.page).read_text()
    assert service.name.split(" for ")[0].removeprefix("Google ").removeprefix("Amazon ") in page
    assert "was not tried" in page


@pytest.mark.parametrize(
    ("service", "setting", "words"),
    [
        ("RDS", "wal_level", "set rds.logical_replication = 1 in a custom DB parameter group"),
        ("Aurora", "wal_level", "set rds.logical_replication = 1 in a custom DB cluster parameter group"),
        ("Cloud SQL", "wal_level", "set the flag cloudsql.logical_decoding = on"),
        ("AlloyDB", "wal_level", "set the flag alloydb.logical_decoding = on"),
        ("Azure", "wal_level", "set the server parameter wal_level = logical, and restart the server"),
        ("Neon", "wal_level", "enable logical replication in the settings of the Neon project"),
        ("Supabase", "max_replication_slots", "postgres-config update --config max_replication_slots=logical"),
        ("Supabase", "max_prepared_transactions", "does not list max_prepared_transactions"),
    ],
)
def test_a_remedy_names_the_services_own_setting(service: str, setting: str, words: str) -> None:
    assert words in named(service).set(setting, "logical", restart=True)


@pytest.mark.parametrize(
    ("service", "words"),
    [
        ("RDS", 'GRANT rds_replication TO "r" (docs'),
        ("Aurora", 'GRANT rds_replication TO "r" (docs'),
        ("Azure", 'ALTER ROLE "r" REPLICATION (docs'),
        ("Neon", "create the role in Neon's console, CLI or API"),
        ("Supabase", 'ALTER ROLE "r" REPLICATION: as the role postgres, on PostgreSQL 17'),
    ],
)
def test_how_a_role_may_replicate(service: str, words: str) -> None:
    assert named(service).let_replicate('"r"').startswith(words)
