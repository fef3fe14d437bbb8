"""A JVM with an XA transaction manager over several databases, started from locked artifacts.

The programs beside this module are compiled by Eclipse's compiler, which needs no JDK.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from psycopg.conninfo import conninfo_to_dict

from twofold_common import java
from twofold_common.artifacts import fetch, read_lock

HERE: Final = Path(__file__).parent
MANAGERS: Final = ("Narayana", "Atomikos")


class XaManager:
    """One life of the JVM. Its log is in the folder, and the next life recovers from it."""

    def __init__(self, name: str, folder: Path, conninfos: Sequence[str]) -> None:
        classpath = compile_manager(name, folder / "classes")
        log = folder / "log"
        log.mkdir(exist_ok=True)
        program = java.find("an XA manager", 17).program
        self._errors = (folder / "errors.log").open("ab")
        self._process = subprocess.Popen(
            [program, "-XX:TieredStopAtLevel=1", "-cp", classpath, "Transfers", name, str(log), *map(_url, conninfos)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=folder,
        )
        self._wait_for("ready")

    def transfer(self, name: str, amount: int) -> None:
        self._send(f"transfer {name} {amount}")
        self._wait_for(f"committed {name}")

    def transfer_until_held(self, name: str, amount: int, method: str) -> None:
        """Return when the manager stands still before its second call of the method."""
        self._send(f"hold {method}")
        self._wait_for(f"holding {method}")
        self._send(f"transfer {name} {amount}")
        self._wait_for("held")

    def recover(self) -> None:
        self._send("recover")
        self._wait_for("recovered")

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _wait_for(self, wanted: str) -> None:
        """What the manager itself prints is passed over."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip() == wanted:
                return
        raise AssertionError(f"it ended before it said {wanted!r}: {Path(self._errors.name).read_text()[-3000:]}")


def compile_manager(name: str, classes: Path) -> str:
    """Return the class path of the compiled programs."""
    compiler, driver = fetch(read_lock((HERE / "tools.lock").read_text()))
    libraries = (driver, *fetch(read_lock((HERE / f"{name.lower()}.lock").read_text())))
    path = os.pathsep.join(map(str, libraries))
    if not classes.exists():
        sources = [str(HERE / f"{each}.java") for each in ("Transfers", "Branches", name)]
        compiling: list[str | Path] = [
            java.find("an XA manager", 17).program, "-jar", compiler, "-source", "17", "-target", "17", "-nowarn", "-proc:none",
            "-cp", path, "-d", str(classes), *sources,
        ]  # fmt: skip
        done = subprocess.run(compiling, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return os.pathsep.join([str(classes), path])


def _url(conninfo: str) -> str:
    given = conninfo_to_dict(conninfo)
    return f"jdbc:postgresql://{given['host']}:{given['port']}/{given['dbname']}?user={given['user']}"
