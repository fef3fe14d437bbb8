"""Twofold: a connector for each database, both in one source group, and one mirror of the group."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from typing import Final

from compare import lake
from compare.bank import DATABASES, GID_PATTERN, TABLES
from compare.faults import Part
from compare.ground import Ground, PostgresCopy, Service
from compare.lake import LakeCopy, Locations, NotThereError
from compare.looks import Copy
from twofold_common.java import spark_java_home
from twofold_spark.session import CATALOG, member_catalog


class Twofold:
    """With the defaults. The mirror writes into PostgreSQL."""

    name = "twofold"
    kafka = True
    documentation: tuple[tuple[str, str], ...] = (
        ("group, prepared.gid_patterns, --prefix of each member", "docs/learn/two-phase.md"),
        ("--sink jdbc", "docs/use/spark.md"),
    )

    def __init__(self) -> None:
        self._services: dict[str, Service] = {}

    @property
    def parts(self) -> Mapping[str, Part]:
        return self._services

    def start(self, ground: Ground) -> Copy:
        for database in DATABASES:
            command = self._configure(ground, database)
            done = subprocess.run([*command, "init"], capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"init of {database} ended with {done.returncode}: {done.stderr[-500:]}")
            self._add(ground, f"connector {database}", [*command, "run"])
        mirror = [
            *(sys.executable, "-m", "twofold_spark", "mirror"),
            *("--bootstrap", ground.kafka.bootstrap, "--registry", ground.registry.url),
            *("--warehouse", str(ground.folder / "lake"), *self._sink(ground)),
            *(word for database in DATABASES for word in ("--prefix", database)),
        ]
        # Spark reads its defaults there.
        environment = {"JAVA_HOME": str(spark_java_home()), "SPARK_CONF_DIR": str(ground.folder)}
        self._add(ground, "mirror", mirror, environment)
        return self._copy(ground)

    def _sink(self, ground: Ground) -> tuple[str, ...]:
        return "--sink", f"jdbc={ground.copies}"

    def _copy(self, ground: Ground) -> Copy:
        return PostgresCopy(ground.copies, "{database}_{database}")

    def tend(self) -> None:
        for service in self._services.values():
            service.tend()

    def stop(self) -> None:
        for service in self._services.values():
            service.stop()

    def _add(self, ground: Ground, name: str, command: list[str], environment: Mapping[str, str] | None = None) -> None:
        self._services[name] = Service(name, command, ground.folder / f"{name}.log", environment)
        self._services[name].start()

    @staticmethod
    def _configure(ground: Ground, database: str) -> list[str]:
        file = ground.folder / f"{database}.toml"
        file.write_text(
            f'name = "{database}"\n'
            f'[source]\ndsn = "{ground.dsns[database]}"\ntables = ["{database}.*"]\n'
            f'[kafka]\nbootstrap = "{ground.kafka.bootstrap}"\nreplication = 1\nmin_insync_replicas = 1\n'
            f'[registry]\nurl = "{ground.registry.url}"\n'
            f'[spool]\nfolder = "{ground.folder / f"spool-{database}"}"\n'
            f'[status]\nlisten = "none"\n'
            f'[group]\nname = "bank"\nmembers = {list(DATABASES)}\n'
            f"[prepared]\ngid_patterns = ['{GID_PATTERN}']\n"
        )
        return [sys.executable, "-m", "twofold", "-c", str(file)]


class TwofoldIceberg(Twofold):
    """The mirror writes into Iceberg. The catalogs of both members and of the cuts are in the
    destination. The reader reads the last cut: plain names of two members change one after the
    other.
    """

    name = "twofold-iceberg"
    documentation = (
        *Twofold.documentation[:1],
        ("--catalog-uri, a catalog for each member, twofold.cuts", "docs/use/spark.md"),
    )

    def __init__(self) -> None:
        super().__init__()
        self._lake: CutCopy | None = None

    def stop(self) -> None:
        super().stop()
        if self._lake is not None:
            self._lake.duckdb.close()

    def _sink(self, ground: Ground) -> tuple[str, ...]:
        choice, place = lake.choose_catalog(ground), ground.folder / "lake"
        secrets = ground.folder / "catalog.properties"
        secrets.write_text("".join(f"{name}={value}\n" for name, value in choice.properties.items()))
        members = {
            name: value
            for database in DATABASES
            for name, value in choice.settings(str(place / database), member_catalog(CATALOG, database)).items()
        }
        (ground.folder / "spark-defaults.conf").write_text(
            "".join(f"{name} {value}\n" for name, value in members.items())
        )
        return "--catalog-uri", choice.uri, "--catalog-file", str(secrets)

    def _copy(self, ground: Ground) -> Copy:
        self._lake = CutCopy(ground.copies)
        return self._lake


LAST_CUT: Final = """
WITH cuts AS (FROM iceberg_scan('{}') WHERE joined),
     whole AS (SELECT number FROM cuts GROUP BY number HAVING bool_and(whole) ORDER BY number DESC LIMIT 1)
SELECT prefix, t.name, t.version FROM (SELECT prefix, unnest(tables) AS t FROM cuts JOIN whole USING (number))
"""


class CutCopy(LakeCopy):
    """The tables at the versions that the last whole cut names."""

    def scans(self, locations: Locations) -> Mapping[str, str]:
        rows = self.duckdb.ask(LAST_CUT.format(lake.find(locations, CATALOG, "twofold", "cuts")))
        versions = {(prefix, name): version for prefix, name, version in rows}
        scans = {}
        for database in DATABASES:
            for table in TABLES:
                version = versions.get((database, f"{database}.{table}"))
                if version is None:
                    raise NotThereError(table)
                place = lake.find(locations, member_catalog(CATALOG, database), database, table)
                scans[self.names[database][table]] = f"'{place}', snapshot_from_id = {version}"
        return scans
