"""Fetches a locked list of Maven artifacts into a cache folder. Standard library only.

A lock file is text, one artifact a line, `#` begins a comment:

    group:artifact:version[:classifier[:extension]] sha256

A file in the cache has the sum that its lock file names. It is moved there, whole and synced to
disk, only after its sum was verified, and its folder is named by that sum. So a second start checks
names alone and downloads nothing, an interrupted one continues with the missing files, and two
processes may fetch at once.

    TWOFOLD_CACHE      the cache folder; else $XDG_CACHE_HOME/twofold, else ~/.cache/twofold
    TWOFOLD_MAVEN_URL  where artifacts come from; `file:///folder`, a folder in Maven's layout,
                       needs no network
"""

from __future__ import annotations

import errno
import hashlib
import http.client
import os
import re
import sys
import tempfile
import threading
import time
import urllib.error
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, TextIO

from twofold_common.http_client import open_url

MAVEN_CENTRAL: Final = "https://repo1.maven.org/maven2"
_CHUNK: Final = 1 << 18
_TRIES: Final = 4
_PAUSE_S = 0.4
_AT_ONCE: Final = 8
_SOCKET_TIMEOUT_S: Final = 60


class ArtifactError(Exception):
    """A locked artifact cannot be fetched; the message names cause and remedy in one line."""


class ArtifactUnreachableError(ArtifactError):
    """The server of the artifacts does not answer; a retry may help."""


@dataclass(frozen=True, slots=True)
class Artifact:
    group: str
    name: str
    version: str
    classifier: str
    extension: str
    sha256: str

    @property
    def filename(self) -> str:
        classifier = f"-{self.classifier}" if self.classifier else ""
        return f"{self.name}-{self.version}{classifier}.{self.extension}"

    @property
    def path(self) -> str:
        """The artifact's place below the address of a Maven repository."""
        return f"{self.group.replace('.', '/')}/{self.name}/{self.version}/{self.filename}"


def read_lock(text: str) -> tuple[Artifact, ...]:
    """Return the artifacts of a lock file, in its order."""
    artifacts = []
    for number, line in enumerate(text.splitlines(), 1):
        content = line.partition("#")[0].strip()
        if not content:
            continue
        match = re.fullmatch(r"([^\s:]+):([^\s:]+):([^\s:]+)(?::([^\s:]*))?(?::([^\s:]+))?\s+([0-9a-f]{64})", content)
        if match is None:
            raise ArtifactError(
                f"line {number} of a lock file is not 'group:artifact:version[:classifier[:ext]] sha256': {content}"
            )
        group, name, version, classifier, extension, sha256 = match.groups()
        artifacts.append(Artifact(group, name, version, classifier or "", extension or "jar", sha256))
    return tuple(artifacts)


def cache_folder() -> Path:
    """Return the folder of everything that was fetched."""
    if chosen := os.environ.get("TWOFOLD_CACHE"):
        return Path(chosen).absolute()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg).absolute() / "twofold"
    return Path.home() / ".cache" / "twofold"


def fetch(
    artifacts: Sequence[Artifact], *, cache: Path | None = None, maven_url: str | None = None, out: TextIO | None = None
) -> tuple[Path, ...]:
    """Return the artifacts' files in order; download missing ones, with progress on `out`."""
    folder = (cache or cache_folder()) / "artifacts"
    places = tuple(folder / artifact.sha256[:16] / artifact.filename for artifact in artifacts)
    missing = [(artifact, place) for artifact, place in zip(artifacts, places, strict=True) if not place.exists()]
    if missing:
        address = maven_url or os.environ.get("TWOFOLD_MAVEN_URL") or MAVEN_CENTRAL
        _Download(address.rstrip("/"), folder, out or sys.stderr).all(missing)
    return places


class _Download:
    """One download: a few threads download, and the caller's thread shows progress."""

    def __init__(self, address: str, folder: Path, out: TextIO) -> None:
        if not address.startswith(("https://", "http://", "file:///")):
            raise ArtifactError(f"TWOFOLD_MAVEN_URL is {address!r}: give an https://, http:// or file:/// address")
        self._address = address
        self._folder = folder
        self._out = out
        self._stop = threading.Event()
        self._counting = threading.Lock()
        self._bytes = 0

    def all(self, missing: list[tuple[Artifact, Path]]) -> None:
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="fetch") as pool:
            try:
                futures = [pool.submit(self._one, artifact, place) for artifact, place in missing]
                shown = -1.0
                while True:
                    done, pending = wait(futures, timeout=0.2)
                    for future in done:
                        future.result()
                    if time.monotonic() - shown >= self._pause or not pending:
                        self._show(len(done), len(futures))
                        shown = time.monotonic()
                    if not pending:
                        return
            finally:
                # Ctrl-C or a first error: what is queued is dropped, what runs ends at its next
                # chunk.
                self._stop.set()
                pool.shutdown(cancel_futures=True)

    @property
    def _pause(self) -> float:
        return 0.2 if self._out.isatty() else 5.0

    def _show(self, done: int, total: int) -> None:
        line = f"fetching {total} files to {self._folder}: {done} done, {self._bytes / 1e6:.1f} MB"
        if self._out.isatty():
            self._out.write(f"\r\x1b[K{line}" + ("\n" if done == total else ""))
        else:
            self._out.write(line + "\n")
        self._out.flush()

    def _one(self, artifact: Artifact, place: Path) -> None:
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=place.parent, prefix=".part-", delete=False) as part:
                try:
                    self._verified(artifact, part)
                    # It was made 0600; an unprivileged PostgreSQL and other users of a shared cache
                    # read it too.
                    os.fchmod(part.fileno(), 0o644)
                    os.fsync(part.fileno())
                    Path(part.name).replace(place)
                except BaseException:
                    Path(part.name).unlink(missing_ok=True)
                    raise
        except OSError as error:
            raise disk_error(error, place.parent) from error

    def _verified(self, artifact: Artifact, part: IO[bytes]) -> None:
        url = f"{self._address}/{artifact.path}"
        for attempt in range(1, _TRIES + 1):
            try:
                found = self._stream(url, part)
                break
            except urllib.error.HTTPError as error:
                if error.code < 500 or attempt == _TRIES:
                    raise ArtifactUnreachableError(f"{url} answers {error.code} {error.reason}: {_REACH}") from error
            except (OSError, http.client.HTTPException) as error:
                if isinstance(getattr(error, "reason", None), FileNotFoundError):
                    raise ArtifactUnreachableError(
                        f"{url} is not there: put it into the folder that TWOFOLD_MAVEN_URL names, in Maven's layout"
                    ) from error
                # The network's: the disk's own errors are no OSError any more when they leave
                # _stream.
                if attempt == _TRIES:
                    raise ArtifactUnreachableError(f"{url} cannot be reached ({_reason(error)}): {_REACH}") from error
            self._stop.wait(_PAUSE_S * 4 ** (attempt - 1))
        if found != artifact.sha256:
            raise ArtifactError(
                f"the sha256 of {url} is {found}, the lock file says {artifact.sha256}: do not use it; "
                "try another network or set TWOFOLD_MAVEN_URL to a repository that you trust"
            )

    def _stream(self, url: str, part: IO[bytes]) -> str:
        digest = hashlib.sha256()
        received = 0
        with open_url(url, timeout_s=_SOCKET_TIMEOUT_S, may_leave=True) as answer:
            expected = int(answer.headers.get("Content-Length") or 0)
            _write(part, None)
            while chunk := answer.read(_CHUNK):
                if self._stop.is_set():
                    raise ArtifactError("the download was stopped: start it again, finished files are kept")
                _write(part, chunk)
                digest.update(chunk)
                received += len(chunk)
                with self._counting:
                    self._bytes += len(chunk)
        if received < expected:
            raise ConnectionError(f"the connection ended after {received} of {expected} bytes")
        return digest.hexdigest()


def _write(part: IO[bytes], chunk: bytes | None) -> None:
    """Append a chunk, or begin again; an error here is the disk's and not the network's."""
    try:
        if chunk is None:
            part.seek(0)
            part.truncate()
        else:
            part.write(chunk)
            part.flush()
    except OSError as error:
        raise disk_error(error, Path(part.name).parent) from error


_REACH: Final = (
    "check the network and HTTPS_PROXY, or set TWOFOLD_MAVEN_URL to a mirror of Maven Central or file:///folder"
)


def disk_error(error: OSError, folder: Path) -> ArtifactError:
    """Return the message for an error of the file system below the cache folder."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return ArtifactError(
            f"no free disk in {folder}: free some or set TWOFOLD_CACHE to a folder with room (1 GB will do)"
        )
    return ArtifactError(
        f"cannot write to {folder} ({error.strerror}): set TWOFOLD_CACHE to a folder that you may write to"
    )


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", None) or error or type(error).__name__)
