"""Checks this machine: compiled row path, spool, key of hashes, clock, open files."""

from __future__ import annotations

import os
import resource
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from twofold.config import Config
from twofold.doctor.finding import Finder, Finding
from twofold.errors import TwofoldError, UsageError
from twofold.row_path import COMPILE, COST, NOT_COMPILED
from twofold.source.connection import connect
from twofold_avro.transcode import is_compiled

FILES_MIN = 1024
SKEW_S_MAX = 1.0
SPOOL_FREE_MIN = 1 << 30
_finding = Finder("machine")


def examine(config: Config) -> Iterator[Finding]:
    for check in _CHECKS:
        yield from check(config)


def _compiled(_: Config) -> Iterator[Finding]:
    if not is_compiled():
        yield _finding.should(
            "compiled",
            NOT_COMPILED,
            COST,
            "apt-get install gcc python3-dev  # or what your system calls a C compiler",
            COMPILE,
        )


def _spool(config: Config) -> Iterator[Finding]:
    folder = config.spool.folder
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        yield _finding.must(
            "spool_folder",
            f"the spool's folder {folder} cannot be made or written",
            "prepared and large transactions wait there when memory is full",
            f"install -d -m 700 -o {os.geteuid()} {folder}",
        )
        return
    free = shutil.disk_usage(nearest).free
    if free < SPOOL_FREE_MIN:
        yield _finding.should(
            "spool_disk",
            f"{free >> 20} MiB are free under {folder}",
            "when the disk is full the run stops; nothing is lost, and it starts over",
            "spool.folder = <a folder on a larger disk>",
        )
    elif free < config.spool.disk:
        yield _finding.note(
            "spool_disk",
            f"{free >> 30} GiB are free under {folder}, and spool.disk allows {config.spool.disk >> 30} GiB",
            "the disk is full before the limit is reached, and everything else on it stops as well",
            f"spool.disk = {free * 9 // 10}",
        )


def _memory_disk(config: Config) -> Iterator[Finding]:
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    under = [m for m in mounts if config.spool.folder.is_relative_to(m[1])]
    if under and max(under, key=lambda m: len(m[1]))[2] == "tmpfs":
        yield _finding.should(
            "spool_tmpfs",
            f"the spool's folder {config.spool.folder} is in memory (tmpfs)",
            "the spool is there to save memory, and a folder in memory saves none",
            'spool.folder = "/var/tmp/twofold"',
        )


def _policy_key(config: Config) -> Iterator[Finding]:
    try:
        _ = config.policy.hash_key
    except UsageError as error:
        what, _, remedy = str(error).partition("; ")
        yield _finding.must("policy_key", what, "twofold run ends: it could not hash", f"-- {remedy}")


def _clock(config: Config) -> Iterator[Finding]:
    try:
        with connect(config.conninfo) as connection:
            before = time.time()
            row = connection.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchone()
            after = time.time()
    except TwofoldError:
        return  # that PostgreSQL is away is said by its own part
    assert row is not None
    skew_s = max(before - row[0], row[0] - after, 0.0)
    if skew_s > SKEW_S_MAX:
        yield _finding.note(
            "clock",
            f"this machine's clock and PostgreSQL's differ by {skew_s:.1f} s",
            "latencies in metrics and on the page are wrong by as much; nothing else depends on it",
            "timedatectl set-ntp true  # on both machines",
        )


def _files(_: Config) -> Iterator[Finding]:
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < FILES_MIN:
        yield _finding.should(
            "open_files",
            f"{soft} files may be open",
            "each producer of the pool holds a connection to each broker",
            f"ulimit -n {FILES_MIN}  # LimitNOFILE={FILES_MIN} in a systemd unit",
        )


_CHECKS: tuple[Callable[[Config], Iterator[Finding]], ...] = (
    _spool,
    _memory_disk,
    _compiled,
    _policy_key,
    _files,
    _clock,
)
