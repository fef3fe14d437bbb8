"""The files that servers need: locked artifacts, unpacked into the cache, and folders."""

from __future__ import annotations

import hashlib
import os
import platform
import pwd
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from twofold.errors import SetupError, Unreachable
from twofold_common import artifacts
from twofold_common.artifacts import Artifact, ArtifactError, ArtifactUnreachableError

OTHER_KAFKA = "TWOFOLD_KAFKA_LOCK"
"""The variable that chooses the brokers' version."""


def require_linux() -> None:
    if sys.platform != "linux":
        raise SetupError(f"the local stack runs on Linux, this is {platform.system()}: use docker-compose.yml here")


def locked(name: str) -> tuple[Artifact, ...]:
    """Return the artifacts of one of the stack's lock files.

    TWOFOLD_KAFKA_LOCK names another file for Kafka: whatever starts a broker starts that version.
    """
    if name == "kafka" and (chosen := os.environ.get(OTHER_KAFKA)):
        try:
            return artifacts.read_lock(Path(chosen).read_text())
        except OSError as error:
            raise SetupError(f"{OTHER_KAFKA} names {chosen}, which cannot be read: {error.strerror}") from error
    return artifacts.read_lock((resources.files(__package__) / f"{name}.lock").read_text())


def fetched(wanted: tuple[Artifact, ...]) -> tuple[Path, ...]:
    """Return the files of the artifacts; raise the connector's errors."""
    try:
        return artifacts.fetch(wanted)
    except ArtifactUnreachableError as error:
        raise Unreachable(str(error)) from error
    except ArtifactError as error:
        raise SetupError(str(error)) from error
    except OSError as error:
        raise SetupError(
            f"the cache {artifacts.cache_folder()} cannot be used: {error.strerror}; remedy: set TWOFOLD_CACHE to a folder that you may write to"
        ) from error


def unpacked(artifact: Artifact) -> Path:
    """Return the folder with the contents of a .tar.gz, or of the .txz inside a .jar.

    It is moved to its place when it is complete.
    """
    place = artifacts.cache_folder() / "unpacked" / artifact.sha256[:16]
    if place.exists():
        return place
    (archive,) = fetched((artifact,))
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent, prefix=".part-") as part:
            folder = Path(part) / "whole"
            _extract(archive, folder)
            move_whole(folder, place)
    except OSError as error:
        raise SetupError(str(artifacts.disk_error(error, place.parent))) from error
    return place


def _extract(archive: Path, folder: Path) -> None:
    try:
        if archive.suffix == ".jar":
            with zipfile.ZipFile(archive) as jar:
                inner = next(name for name in jar.namelist() if name.endswith(".txz"))
                with jar.open(inner) as packed, tarfile.open(fileobj=packed, mode="r:xz") as tar:
                    _untar(tar, folder)
        else:
            with tarfile.open(archive, "r:gz") as tar:
                _untar(tar, folder)
    except tarfile.CompressionError as error:
        raise SetupError(
            f"this Python cannot unpack {archive} ({error}): use one with the modules lzma and zlib"
        ) from error


def _untar(tar: tarfile.TarFile, folder: Path) -> None:
    # The first releases of 3.11 have no filters; the sum of the archive was verified either way.
    tar.extraction_filter = getattr(tarfile, "data_filter", lambda member, _path: member)
    tar.extractall(folder)  # noqa: S202


def keep(file: Path, place: Path) -> None:
    """Copy a file into the cache, where it is complete when it is there."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=".part-") as part:
        Path(shutil.copyfile(file, Path(part) / file.name)).replace(place)


def server_user() -> str | None:
    """Return the user that PostgreSQL runs as if this process is root, else None."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    raise SetupError("PostgreSQL does not run as root and there is no user postgres or nobody: run as another user")


def run(what_failed: str, command: Sequence[str], *, log: Path, user: str | None = None) -> None:
    """Run a preparing command to its end, with its output appended to the log."""
    dropped: dict[str, Any] = {}
    if user is not None:
        dropped = {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}
    environment = {**os.environ, "LC_ALL": "C", "TZ": "UTC"}
    with log.open("a+") as output:
        start = output.seek(0, os.SEEK_END)
        done = subprocess.run(
            command, stdout=output, stderr=output, cwd=log.parent, env=environment, check=False, **dropped
        )
        if done.returncode != 0:
            output.seek(start)
            lines = [line.strip() for line in output.read().splitlines() if line.strip()]
            raise SetupError(f"{what_failed}: {lines[-1] if lines else done.returncode} (log: {log})")


def own(folder: Path, user: str | None) -> None:
    """Make a folder that only the user may use, on a path that the user can walk."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    if user is None:
        return
    shutil.chown(folder, user)
    if (closed := _closed_folder(folder.parent)) is not None:
        raise SetupError(
            f"PostgreSQL runs as user {user}, who cannot reach {folder} through {closed}: choose a folder elsewhere, as below /var/tmp, "
            "or do not run as root"
        )


def open_folder() -> Path:
    """Return a folder of this user below the machine's temporary one, which every user can walk."""
    folder = Path(tempfile.gettempdir()) / f"twofold-{os.geteuid()}"
    folder.mkdir(mode=0o755, exist_ok=True)
    if folder.stat().st_uid != os.geteuid() or folder.is_symlink():
        raise SetupError(f"{folder} belongs to someone else: remove it, or set TMPDIR to another folder")
    folder.chmod(0o755)
    return folder


def can_reach(program: Path, user: str | None) -> bool:
    """Whether the user can run this program: files below /root are for root alone."""
    return user is None or (_closed_folder(program.parent) is None and bool(program.stat().st_mode & stat.S_IROTH))


def open_copy(parts: tuple[Path, ...]) -> Path:
    """Return a copy of neighbouring folders that every user can read."""
    source = parts[0].resolve()
    mark = hashlib.sha256(f"{source} {source.stat().st_mtime_ns}".encode()).hexdigest()[:16]
    place = open_folder() / f"server-{mark}"
    if place.exists():
        return place
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=".part-") as temporary:
        whole = Path(temporary) / "whole"
        for part in parts:
            shutil.copytree(part, whole / part.name, symlinks=True)
        for path in (whole, *whole.rglob("*")):
            if not path.is_symlink():
                path.chmod(path.stat().st_mode | (0o555 if path.is_dir() else 0o444))
        move_whole(whole, place)
    return place


def move_whole(folder: Path, place: Path) -> None:
    """Rename a complete folder to its place; a quicker process's equal copy stays."""
    try:
        folder.rename(place)
    except OSError:
        if not place.exists():
            raise


def _closed_folder(folder: Path) -> Path | None:
    """Return the first folder on the path that lets no other user pass."""
    resolved = folder.resolve()
    for step in (*reversed(resolved.parents), resolved):
        if not step.stat().st_mode & stat.S_IXOTH:
            return step
    return None
