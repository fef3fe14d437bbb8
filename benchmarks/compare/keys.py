"""Whether a system loses rows whose keys are changed while what reads the source is killed.

    PYTHONPATH=tests:benchmarks .venv/bin/python -m compare.keys SYSTEM [KILLS]

One transaction changes the keys of 30,000 rows; while the system carries it, the part that reads
that database is killed, and starts again. Then a row is inserted: when the copy has it, it has all
that came before, or never will, and is compared with the source. That comes KILLS times (5), or
until a row is lost. SYSTEM is one of Debezium's or of Twofold's. The last line is one JSON object.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

import psycopg

from compare import faults, verdict
from compare.__main__ import SYSTEMS, say
from compare.bank import DATABASES, Client
from compare.faults import Fault
from compare.looks import Copy
from compare.trial import FULL, Trial

_DATABASE: Final = DATABASES[0]
_READERS: Final = ("connect", f"connector {_DATABASE}")
"""What reads the source, by the names of parts."""
_ROWS: Final = 30_000
_ROWS_OF_ONE: Final = 1_000
_UNTIL_KILLED_S: Final = (0.5, 4.0)
_AWAY_S: Final = 1.0
_CARRIED_S: Final = 300.0
_MARK: Final = 10**12
"""The first inserted row's id, above those of the others."""


class KeyChanges(Trial):
    """Changes keys and kills, without clients and other faults."""

    def change_keys(self, kills: int) -> Mapping[str, Any]:
        """Return which rows were lost by how many kills."""
        rng = random.Random(self._seed)
        with ExitStack() as ending:
            ending.enter_context(self._ground.started(kafka=self._system.kafka))
            ending.callback(self._system.stop)
            copy = self._system.start(self._ground)
            client = Client(self._ground.dsns, self._journal, "keys", threading.Event())
            client.load(_DATABASE, _ROWS, _ROWS_OF_ONE)
            self._until("the rows are there", lambda: self._equal(copy), _CARRIED_S)
            done, lost = 0, list[str]()
            while done < kills and not lost:
                self._execute("UPDATE {}.entry SET id = -id")
                self._pause(rng.uniform(*_UNTIL_KILLED_S))
                name = next(each for each in _READERS if each in self._system.parts)
                faults.befall(Fault(name, "kill", 0, _AWAY_S), self._system.parts[name])
                mark = _MARK + done
                self._execute(f"INSERT INTO {{}}.entry VALUES ({mark}, 0, 1, 1, 1, NULL, NULL, 0)")
                self._until("the last row is there", partial(self._has, copy, mark), _CARRIED_S)
                done += 1
                lost = verdict.compare_ends(self._read_source(), self._read(copy)).lost
                self._say(f"kill {done}: {len(lost)} rows lost")
        shutil.rmtree(self._ground.folder, ignore_errors=True)
        return {"system": self._system.name, "kills": done, "lost": len(lost), "examples": lost[:5]}

    def _execute(self, statement: str) -> None:
        with psycopg.connect(self._ground.dsns[_DATABASE]) as session:
            session.execute(statement.format(_DATABASE).encode())

    def _has(self, copy: Copy, entry: int) -> bool:
        rows = self._read_if_there(copy)
        return rows is not None and any(row[0] == entry for row in rows[_DATABASE, "entry"])


def main(system: str, kills: str = "5") -> None:
    begun = time.monotonic()
    found = KeyChanges(SYSTEMS[system](), 1, FULL, say).change_keys(int(kills))
    print(json.dumps({**found, "seconds": round(time.monotonic() - begun)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
