"""Recognises a managed service by the signs of its server, and says how the service's settings
change.

`Service` is pure: a table of the statements in each vendor's documentation (docs/services/ has the
links). None of the services was tried. `ask` runs the one query. A server without any sign is
PostgreSQL. `twofold.source.connection.service_at` asks over a connection of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from psycopg import Connection

MAY_REPLICATE = """
SELECT rolreplication OR rolsuper OR EXISTS (
         SELECT FROM pg_catalog.pg_roles AS given
          WHERE given.rolname = 'rds_replication' AND pg_catalog.pg_has_role(current_user, given.oid, 'MEMBER'))
  FROM pg_catalog.pg_roles WHERE rolname = current_user
"""
"""Whether our role may replicate: by its attribute, or on RDS as a member of rds_replication."""


@dataclass(frozen=True, slots=True)
class Service:
    """A service that runs PostgreSQL, and its users' way to change settings."""

    name: str
    signs: frozenset[str] = frozenset()
    """Names of settings, roles and functions that only this service has."""
    page: str = ""
    change: str = "ALTER SYSTEM SET {setting} = {value}"
    restart: str = "restart PostgreSQL"
    logical: str = ""
    """The change that makes wal_level logical, where that is not a change of wal_level."""
    instead: Mapping[str, str] = field(default_factory=dict)
    """The text about a setting that users cannot change."""
    grant: str = "ALTER ROLE {role} REPLICATION"
    """The statement that lets a role replicate; empty if no statement does."""
    grant_note: str = ""

    @property
    def is_managed(self) -> bool:
        return bool(self.page)

    def set(self, setting: str, value: object, *, restart: bool) -> str:
        """Say how a setting gets a value."""
        if setting in self.instead:
            said = self.instead[setting]
        elif setting == "wal_level" and self.logical:
            said = self.logical
        else:
            said = self.change.format(setting=setting, value=value)
            if restart and self.restart:
                said += f", and {self.restart}"
        return f"{said} ({self.page})" if self.is_managed else said

    def let_replicate(self, role: str) -> str:
        """Say how a role, quoted as SQL writes it, gets the right to replicate."""
        said = ": ".join(filter(None, (self.grant.format(role=role), self.grant_note)))
        return f"{said} ({self.page})" if self.is_managed else said


POSTGRESQL = Service("PostgreSQL")

_BY_RDS_ROLE = "GRANT rds_replication TO {role}"

SERVICES = (
    Service(
        "Amazon Aurora PostgreSQL",
        frozenset({"aurora_version"}),
        "docs/services/rds.md",
        change="set {setting} = {value} in a custom DB cluster parameter group of the cluster",
        restart="reboot it",
        logical="set rds.logical_replication = 1 in a custom DB cluster parameter group of the cluster, and reboot it",
        grant=_BY_RDS_ROLE,
    ),
    Service(
        "Amazon RDS for PostgreSQL",
        frozenset({"rds.logical_replication", "rds_superuser"}),
        "docs/services/rds.md",
        change="set {setting} = {value} in a custom DB parameter group of the instance",
        restart="reboot the instance",
        logical="set rds.logical_replication = 1 in a custom DB parameter group of the instance, and reboot the instance",
        grant=_BY_RDS_ROLE,
    ),
    Service(
        "Google Cloud SQL for PostgreSQL",
        frozenset({"cloudsql.logical_decoding", "cloudsqlsuperuser"}),
        "docs/services/google.md",
        change="set the flag {setting} = {value} on the instance",
        restart="restart the instance",
        logical="set the flag cloudsql.logical_decoding = on on the instance, and restart it",
    ),
    Service(
        "Google AlloyDB for PostgreSQL",
        frozenset({"alloydb.logical_decoding", "alloydbsuperuser"}),
        "docs/services/google.md",
        change="set the flag {setting} = {value} on the primary instance",
        restart="",
        logical="set the flag alloydb.logical_decoding = on on the primary instance, which restarts it",
    ),
    Service(
        "Azure Database for PostgreSQL",
        frozenset({"azure.extensions", "azure_pg_admin"}),
        "docs/services/azure.md",
        change="set the server parameter {setting} = {value}",
        restart="restart the server",
    ),
    Service(
        "Neon",
        frozenset({"neon.timeline_id", "neon_superuser"}),
        "docs/services/neon.md",
        change="ask Neon's support to set {setting} = {value}",
        restart="",
        logical="enable logical replication in the settings of the Neon project, which restarts its computes",
        grant="",
        grant_note="create the role in Neon's console, CLI or API, because no SQL gives a role REPLICATION there",
    ),
    Service(
        "Supabase",
        frozenset({"supabase_admin"}),
        "docs/services/supabase.md",
        change="supabase --experimental --project-ref <ref> postgres-config update --config {setting}={value}",
        restart="",
        instead={
            "max_prepared_transactions": "Supabase does not list max_prepared_transactions among the settings that its users can change",
            "wal_level": "Supabase does not list wal_level among the settings that its users can change: ask its support",
        },
        grant_note="as the role postgres, on PostgreSQL 17 and later; before 17, connect as postgres itself",
    ),
)
"""The services, in the order of recognition: Aurora has RDS's signs too."""

_SIGNS = sorted(frozenset[str]().union(*(service.signs for service in SERVICES)))

_QUERY = """
SELECT sign FROM unnest(%s::text[]) AS sign
 WHERE position('.' IN sign) > 0 AND current_setting(sign, true) IS NOT NULL
    OR EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = sign)
    OR EXISTS (SELECT FROM pg_catalog.pg_proc WHERE proname = sign)
"""


def recognise(signs: Collection[str]) -> Service:
    """Return the service that has one of these signs."""
    return next((service for service in SERVICES if not service.signs.isdisjoint(signs)), POSTGRESQL)


def ask(connection: Connection[tuple[Any, ...]]) -> Service:
    """Ask the server for its signs."""
    return recognise([sign for (sign,) in connection.execute(_QUERY, (_SIGNS,)).fetchall()])
