"""Twofold: a connector for each database, both in one source group, and one mirror of the group."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping

from compare.bank import DATABASES, GID_PATTERN
from compare.faults import Part
from compare.ground import Ground, PostgresCopy, Service
from compare.looks import Copy
from twofold_common.java import spark_java_home


class Twofold:
    """With the defaults. The mirror writes into PostgreSQL."""

    name = "twofold"
    kafka = True
    documentation = (
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
            *("--warehouse", str(ground.folder / "lake"), "--sink", f"jdbc={ground.copies}"),
            *(word for database in DATABASES for word in ("--prefix", database)),
        ]
        self._add(ground, "mirror", mirror, {"JAVA_HOME": str(spark_java_home())})
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
