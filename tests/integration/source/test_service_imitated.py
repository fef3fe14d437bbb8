"""Imitations of managed services on a real PostgreSQL: the signs that each service's documentation
names are made by hand. None of these servers is the service that it says it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from fixtures.connector import Maker
from fixtures.stack import VERSION
from twofold.config import Config, load
from twofold.doctor import postgres as doctor
from twofold.errors import SetupError
from twofold.source import provisioning, readiness
from twofold.source.connection import connect
from twofold.source.service import ask
from twofold.stack import PostgresServer, temporary_folder

ROLES = {
    "rds_superuser": "Amazon RDS for PostgreSQL",
    "cloudsqlsuperuser": "Google Cloud SQL for PostgreSQL",
    "alloydbsuperuser": "Google AlloyDB for PostgreSQL",
    "azure_pg_admin": "Azure Database for PostgreSQL",
    "neon_superuser": "Neon",
    "supabase_admin": "Supabase",
}
SETTINGS = {
    "rds.logical_replication": "Amazon RDS for PostgreSQL",
    "cloudsql.logical_decoding": "Google Cloud SQL for PostgreSQL",
    "alloydb.logical_decoding": "Google AlloyDB for PostgreSQL",
    "azure.extensions": "Azure Database for PostgreSQL",
    "neon.timeline_id": "Neon",
}
LACKS = {
    "rds_superuser": ("set rds.logical_replication = 1 in a custom DB parameter group", "GRANT rds_replication TO"),
    "cloudsqlsuperuser": ("set the flag cloudsql.logical_decoding = on", "ALTER ROLE"),
    "alloydbsuperuser": ("set the flag alloydb.logical_decoding = on", "ALTER ROLE"),
    "azure_pg_admin": ("set the server parameter wal_level = logical", "ALTER ROLE"),
    "neon_superuser": ("enable logical replication in the settings of the Neon project", "create the role in Neon"),
    "supabase_admin": ("Supabase does not list wal_level", "as the role postgres"),
}
PREPARED = "max_prepared_transactions = 100"
SETS = {
    "rds_superuser": f"set {PREPARED} in a custom DB parameter group of the instance, and reboot the instance",
    "cloudsqlsuperuser": f"set the flag {PREPARED} on the instance, and restart the instance",
    "alloydbsuperuser": f"set the flag {PREPARED} on the primary instance",
    "azure_pg_admin": f"set the server parameter {PREPARED}, and restart the server",
    "neon_superuser": f"ask Neon's support to set {PREPARED}",
    "supabase_admin": "Supabase does not list max_prepared_transactions among the settings that its users can change",
}
UNREADY = {"wal_level": "replica", "max_prepared_transactions": "0", "max_replication_slots": "1", "fsync": "off"}
CARRIER = "carrier"


def run(conninfo: str, *statements: str) -> None:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


@pytest.fixture(scope="module")
def unready() -> Iterator[PostgresServer]:
    """A server on which nothing is set for Twofold, with a role that may do nothing."""
    server = PostgresServer(temporary_folder() / "imitation", version=VERSION, settings=UNREADY)
    server.start()
    try:
        if server.version >= 19:
            pytest.skip("with wal_level = replica, PostgreSQL 19 is ready: its first slot turns decoding on")
        run(server.dsn(), "SELECT pg_create_physical_replication_slot('anothers')", f"CREATE ROLE {CARRIER} LOGIN")
        yield server
    finally:
        server.stop()


@contextmanager
def imitated(server: PostgresServer, role: str) -> Iterator[str]:
    """Give the server a role that only one service has."""
    run(server.dsn(), f"CREATE ROLE {role}")
    try:
        yield make_conninfo(server.dsn(), user=CARRIER)
    finally:
        run(server.dsn(), f"DROP ROLE {role}")


@pytest.mark.parametrize("role", ROLES)
def test_an_imitated_service_is_recognised_by_its_role_and_its_remedies_are_named(
    unready: PostgresServer, role: str
) -> None:
    with imitated(unready, role) as conninfo:
        with connect(conninfo) as connection:
            assert ask(connection).name == ROLES[role]
        with pytest.raises(SetupError) as refused:
            readiness.require(conninfo, slot="shop", two_phase=True)
    said = str(refused.value)
    assert "wal_level is replica" in said
    for words in LACKS[role]:
        assert words in said
    assert "ALTER SYSTEM" not in said


@pytest.mark.parametrize("setting", SETTINGS)
def test_an_imitated_service_is_recognised_by_its_setting(unready: PostgresServer, setting: str) -> None:
    run(unready.dsn(), f"ALTER ROLE {CARRIER} SET {setting} = 'off'")
    try:
        with connect(make_conninfo(unready.dsn(), user=CARRIER)) as connection:
            assert ask(connection).name == SETTINGS[setting]
    finally:
        run(unready.dsn(), f"ALTER ROLE {CARRIER} RESET ALL")


def test_an_imitated_aurora_is_told_from_rds_by_its_function(unready: PostgresServer) -> None:
    run(unready.dsn(), "CREATE FUNCTION public.aurora_version() RETURNS text LANGUAGE sql AS $$ SELECT '16.4.0' $$")
    try:
        with imitated(unready, "rds_superuser") as conninfo, connect(conninfo) as connection:
            assert ask(connection).name == "Amazon Aurora PostgreSQL"
    finally:
        run(unready.dsn(), "DROP FUNCTION public.aurora_version")


def test_a_server_without_a_sign_is_postgresql(unready: PostgresServer) -> None:
    with connect(unready.dsn()) as connection:
        assert not ask(connection).is_managed


def test_a_member_of_an_imitated_rds_replication_is_not_asked_for_the_attribute(unready: PostgresServer) -> None:
    """On RDS a role replicates by this membership."""
    with imitated(unready, "rds_replication") as conninfo:
        lack = "role carrier may not replicate"
        assert lack in [each.what for each in readiness.examine(conninfo, slot="shop")]
        run(unready.dsn(), f"GRANT rds_replication TO {CARRIER}")
        assert lack not in [each.what for each in readiness.examine(conninfo, slot="shop")]


def test_a_refused_slot_of_an_imitated_service_names_its_setting(unready: PostgresServer) -> None:
    with imitated(unready, "rds_superuser"), pytest.raises(SetupError, match=r"set rds\.logical_replication = 1"):
        provisioning.create_slot(unready.dsn(), "shop", two_phase=True, wait_limit_s=10, on_wait=lambda _: None)


def test_a_role_that_an_imitated_service_does_not_let_in_gets_its_statement(unready: PostgresServer) -> None:
    with imitated(unready, "rds_superuser") as conninfo:
        with pytest.raises(SetupError, match="GRANT rds_replication TO") as refused:
            connect(conninfo, replication=True)
        assert "ALTER ROLE" not in str(refused.value)
    with pytest.raises(SetupError, match=f'ALTER ROLE "{CARRIER}" REPLICATION$'):
        connect(conninfo, replication=True)


@pytest.mark.parametrize("role", ROLES)
def test_doctor_names_an_imitated_service_with_its_rights_and_settings(
    unready: PostgresServer, tmp_path: Path, role: str
) -> None:
    with imitated(unready, role) as conninfo:
        found = {each.check: each for each in doctor.examine(configured(tmp_path, conninfo))}
    page = f"({found['service'].remedy[0].removeprefix('-- see ')})"
    assert found["service"].what == f"the server is {ROLES[role]}, by what it says of itself"
    setting, right = LACKS[role]
    assert setting in found["wal_level"].remedy[0]
    assert right in found["role"].remedy[0]
    assert found["max_prepared_transactions"].remedy == (f"-- {SETS[role]} {page}",)
    for check in ("wal_level", "role"):
        assert found[check].remedy[0].startswith("-- ")
        assert found[check].remedy[0].endswith(page)
    assert not [line for each in found.values() for line in each.remedy if line.startswith("ALTER ")]


def test_doctor_names_an_imitated_aurora_with_its_cluster_parameter_group(
    unready: PostgresServer, tmp_path: Path
) -> None:
    run(unready.dsn(), "CREATE FUNCTION public.aurora_version() RETURNS text LANGUAGE sql AS $$ SELECT '16.4.0' $$")
    try:
        with imitated(unready, "rds_superuser") as conninfo:
            found = {each.check: each for each in doctor.examine(configured(tmp_path, conninfo))}
    finally:
        run(unready.dsn(), "DROP FUNCTION public.aurora_version")
    assert found["service"].what.startswith("the server is Amazon Aurora PostgreSQL")
    for check in ("wal_level", "max_prepared_transactions"):
        assert "in a custom DB cluster parameter group of the cluster, and reboot it" in found[check].remedy[0]


def configured(folder: Path, conninfo: str) -> Config:
    """A configuration with this source, whose Kafka and registry nobody asks."""
    file = folder / "shop.toml"
    file.write_text(
        f'name = "shop"\n[source]\ndsn = "{conninfo}"\n'
        '[kafka]\nbootstrap = "127.0.0.1:1"\n[registry]\nurl = "http://127.0.0.1:1"\n'
    )
    return load(file)


def test_doctor_and_init_name_an_imitated_service_and_its_settings(unready: PostgresServer, connector: Maker) -> None:
    with imitated(unready, "azure_pg_admin") as conninfo:
        here = connector(conninfo=conninfo, init=False, source={"tables": ["public.account"], "backfill": False})
        said = here.twofold("doctor")
        found = {each.check: each for each in doctor.examine(here.config)}
        here.configure({"source": {"dsn": unready.dsn()}})
        done = here.init()
    assert said.returncode == done.returncode == 3
    assert "note    postgresql: the server is Azure Database for PostgreSQL, by what it says of itself" in said.stdout
    logical = "set the server parameter wal_level = logical, and restart the server (docs/services/azure.md)"
    assert f"wal_level is replica; remedy: {logical}" in done.stderr
    assert found["wal_level"].remedy == (f"-- {logical}",)
    assert found["max_prepared_transactions"].remedy == (
        "-- set the server parameter max_prepared_transactions = 100, and restart the server (docs/services/azure.md)",
    )
    assert found["role"].remedy == (f'-- ALTER ROLE "{CARRIER}" REPLICATION (docs/services/azure.md)',)
    assert not [line for each in found.values() for line in each.remedy if line.startswith("ALTER SYSTEM")]
