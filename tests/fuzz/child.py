"""Runs libFuzzer on one function: what every target of `make fuzz` shares."""

from __future__ import annotations

import json
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import atheris


def _report(path: Path, crashes: int) -> None:
    print(json.dumps({"executions": int(path.read_text() or 0), "crashes": crashes}), flush=True)


def _fuzz(check_input: Callable[[bytes], object], seeds: list[bytes], seconds: int, count_file: Path) -> None:
    """Runs in a child, because libFuzzer ends its process itself; the count is left in a file from
    time to time.
    """
    executions = 0
    written = 0.0

    def one_input(data: bytes) -> None:
        nonlocal executions, written
        executions += 1
        if executions % 1000 == 0 and (now := time.monotonic()) - written > 0.2:
            count_file.write_text(str(executions))
            written = now
        check_input(data)

    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(seeds):
            (Path(corpus) / str(number)).write_bytes(seed)
        options = ["fuzz", corpus, f"-max_total_time={seconds}", "-max_len=600", "-verbosity=0", "-timeout=5"]
        atheris.Setup([*options, f"-artifact_prefix={corpus}/"], one_input)
        atheris.Fuzz()


def fuzz_in_child(check_input: Callable[[bytes], object], seeds: list[bytes], seconds: int) -> int:
    """Fuzz for so long; the exit status of a program that does it."""
    with tempfile.NamedTemporaryFile() as file:
        child = os.fork()
        if child == 0:
            try:
                _fuzz(check_input, seeds, seconds, Path(file.name))
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        _, status = os.waitpid(child, 0)
        crashes = int(status != 0)
        _report(Path(file.name), crashes)
    return crashes
