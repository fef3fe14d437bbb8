"""PostgreSQL's source, from Debian's mirrors into the cache of downloads; its sum is locked, and it
is never committed.

    TWOFOLD_DEBIAN_URL  a mirror of Debian, or `file:///folder` in a mirror's layout
    TWOFOLD_CACHE       the cache folder

A mirror drops what a newer version has replaced. snapshot.debian.org has everything: its address
for a day, `https://snapshot.debian.org/archive/debian/<day>`, is a mirror as well.
"""

from __future__ import annotations

import hashlib
import os
import re
import tarfile
import tempfile
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from twofold_common.artifacts import cache_folder

DEBIAN: Final = "https://deb.debian.org/debian"
_LOCK: Final = Path(__file__).with_name("sources.lock")
_WANTED: Final = re.compile(r"[^/]+/src/test/(?:regress/(?=sql/|data/|parallel_schedule)|(?=subscription/t/))(.*)")


class NoSuiteError(Exception):
    """The suite cannot be had; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Source:
    """One line of the lock file."""

    path: str
    sha256: str

    @property
    def filename(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def version(self) -> str:
        return self.filename.partition("_")[2].partition(".orig")[0]

    @property
    def major(self) -> int:
        return int(self.version.partition(".")[0])


@dataclass(frozen=True, slots=True)
class Suite:
    """The tests of one version: a folder with `sql`, `data` and `parallel_schedule`, and
    `subscription/t`.
    """

    version: str
    folder: Path

    def schedule(self) -> list[str]:
        """The files of the schedule, in its order; a group's in the order of the line."""
        names = []
        for line in (self.folder / "parallel_schedule").read_text().splitlines():
            if line.startswith("test:"):
                names += line.split()[1:]
        return names

    def subscriptions(self) -> list[Path]:
        """The tests of logical replication, in Perl."""
        return sorted((self.folder / "subscription" / "t").glob("*.pl"))


def locked() -> list[Source]:
    lines = (line.split() for line in _LOCK.read_text().splitlines() if line and not line.startswith("#"))
    return [Source(path, sha256) for path, sha256 in lines]


def suite(major: int) -> Suite:
    """The suite of that major version, fetched if the cache lacks it."""
    sources = {source.major: source for source in locked()}
    if major not in sources:
        raise NoSuiteError(f"no suite of PostgreSQL {major} is locked: choose of {', '.join(map(str, sources))}")
    source = sources[major]
    place = cache_folder() / "suites" / source.sha256[:16]
    if not place.exists():
        archive = fetch(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent, prefix=".part-") as part:
            whole = Path(part) / "whole"
            _unpack(archive, whole)
            whole.rename(place)
    return Suite(source.version, place)


def fetch(source: Source) -> Path:
    """The archive in the cache. It is moved there, whole, only after its sum was verified."""
    place = cache_folder() / "artifacts" / source.sha256[:16] / source.filename
    if place.exists():
        return place
    url = f"{os.environ.get('TWOFOLD_DEBIAN_URL') or DEBIAN}/{source.path}"
    place.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=".part-") as folder:
        part = Path(folder) / "whole"
        try:
            with urllib.request.urlopen(url, timeout=60) as answer, part.open("wb") as file:
                while chunk := answer.read(1 << 18):
                    digest.update(chunk)
                    file.write(chunk)
        except OSError as error:
            raise NoSuiteError(
                f"{url} cannot be had ({error}): set TWOFOLD_DEBIAN_URL to a mirror that has it, "
                "as https://snapshot.debian.org/archive/debian/<day>"
            ) from error
        if digest.hexdigest() != source.sha256:
            raise NoSuiteError(
                f"the sha256 of {url} is {digest.hexdigest()}, sources.lock says {source.sha256}: do not use it"
            )
        part.rename(place)
    return place


def _unpack(archive: Path, folder: Path) -> None:
    with tarfile.open(archive, "r:bz2") as tar:
        # The first releases of 3.11 have no filters; the sum of the archive was verified either
        # way.
        tar.extraction_filter = getattr(tarfile, "data_filter", lambda member, _path: member)
        for member in _members(tar):
            tar.extract(member, folder)


def _members(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """The suite's files, by their names below its folder."""
    for member in tar:
        if member.isfile() and (found := _WANTED.fullmatch(member.name)) is not None:
            member.name = found[1]
            yield member
