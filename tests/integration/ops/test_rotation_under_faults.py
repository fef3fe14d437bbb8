"""Secrets of all three servers that live 5 s, under load, cut connections, kills, and a token
server that fails: the connector never stops by itself, loses nothing, and shows no secret.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from fixtures.connector import START_S, Installation, wait_until
from helpers.connector import ledger
from helpers.connector.workload import Workload
from helpers.security import ask_secret
from helpers.security.expiring_ground import SERVERS, ExpiringGround, expiring_ground
from helpers.security.token_server import LIFE_S

SLOW_LOGIN_S = 0.36 * LIFE_S
"""A password arrives with the third piece of a login: it has expired then."""


SHAPE = """
CREATE TABLE shape (id int PRIMARY KEY);
CREATE TRIGGER note AFTER INSERT ON shape FOR EACH ROW EXECUTE FUNCTION note('id')
"""


@pytest.fixture
def ground(open_folder: Path, registry: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[ExpiringGround]:
    monkeypatch.setenv("PYTHONPATH", str(Path(ask_secret.__file__).parent), prepend=":")
    monkeypatch.syspath_prepend(Path(ask_secret.__file__).parent)
    with expiring_ground(open_folder, registry.url) as made:
        yield made


@pytest.fixture
def made(ground: ExpiringGround, registry: Any, tmp_path: Path) -> Iterator[Installation]:
    made = Installation(tmp_path, "bank", ground.conninfo, ground.kafka.bootstrap, registry.url, ground.settings())
    made.configure({"kafka": {"call_timeout": 10}, "log": {"level": "debug"}})
    made.sql(ledger.SCHEMA, SHAPE)
    made.configure({"source": {"tables": [f"public.{table}" for table in (*ledger.TABLES, "shape")]}})
    yield made
    made.close()


class Faults:
    """Each leaves a connector that goes on, or the next one."""

    def __init__(self, made: Installation, ground: ExpiringGround, seed: int) -> None:
        self._made = made
        self._ground = ground
        self._random = random.Random(seed)
        self._shapes = 0
        self.done: Counter[str] = Counter()
        self.run = made.start()

    def round(self) -> None:
        """All of them in some order, and the kill last: it begins with short pauses again."""
        faults = [self.cut_postgres, self.cut_kafka, self.cut_registry, self.cut_all, self.slow_login]
        faults += [self.no_token_server, self.late_secrets]
        self._random.shuffle(faults)
        for fault in (*faults, self.kill):
            self.done[fault.__name__] += 1
            fault()
            self._made.caught_up(START_S)
            self.change_shape()
            assert not self.run.dead, self.run.said()[-3000:]

    def change_shape(self) -> None:
        """The registry is asked for a new schema."""
        self._shapes += 1
        n = self._shapes
        self._made.sql(
            f"ALTER TABLE shape ADD COLUMN c{n} int, DROP COLUMN IF EXISTS c{n - 1}", f"INSERT INTO shape VALUES ({n})"
        )

    def cut_postgres(self) -> None:
        self._ground.cut("postgres")

    def cut_kafka(self) -> None:
        self._ground.cut("kafka")

    def cut_registry(self) -> None:
        self._ground.cut("registry")
        self.change_shape()

    def cut_all(self) -> None:
        self._ground.cut(*SERVERS)

    def slow_login(self) -> None:
        """A secret expires in the middle of a login."""
        self._until_denied("postgres", delay_s=SLOW_LOGIN_S)
        self._ground.cut("postgres")

    def late_secrets(self) -> None:
        """Each server is shown a secret that expired on its way."""
        for name in SERVERS:
            self._ground.tokens.stale[name] = 1
            self._until_denied(name)
            self._ground.tokens.stale[name] = 0

    def no_token_server(self) -> None:
        self._ground.tokens.is_down = True
        said = len(self.run.said())
        self._ground.cut("postgres")
        self.wait(lambda: "source.password_command" in self.run.said()[said:])
        self._ground.tokens.is_down = False

    def kill(self) -> None:
        self.run.kill9()
        self.run = self._made.start()

    def wait(self, holds: Any) -> None:
        wait_until(lambda: self.run.dead or holds(), START_S)

    def _until_denied(self, name: str, delay_s: float = 0.0) -> None:
        before = self._ground.tokens.denied[name]
        self._ground.cut(name, delay_s=delay_s)
        if name == "registry":
            self.change_shape()
        self.wait(lambda: self._ground.tokens.denied[name] > before)


class Processes:
    """The command lines and environments of all processes, while the test runs."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self._ended = threading.Event()

    @contextmanager
    def watched(self) -> Iterator[Processes]:
        thread = threading.Thread(target=self._look)
        thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            thread.join()

    def _look(self) -> None:
        while not self._ended.wait(0.3):
            for process in Path("/proc").glob("[0-9]*"):
                with suppress(OSError):  # it has ended
                    self.seen |= {(process / name).read_text(errors="replace") for name in ("cmdline", "environ")}


@contextmanager
def writing(made: Installation) -> Iterator[Workload]:
    """Plain and prepared transactions, all the time."""
    work, ended = Workload(made, seed=32), threading.Event()
    failed: list[BaseException] = []

    def write() -> None:
        try:
            while not ended.is_set():
                work.run()
            work.settle()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield work
    finally:
        ended.set()
        thread.join()
    assert not failed, failed


@pytest.mark.parametrize(
    "rotations",
    [
        pytest.param(3, marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
        pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(5400)]),
    ],
)
def test_rotation_of_secrets_that_live_5_s_under_faults(
    rotations: int, made: Installation, ground: ExpiringGround
) -> None:
    """So many secrets of each server, which it accepted; in the long form 1,000 in all."""
    began = time.monotonic()
    with Processes().watched() as processes:
        done = made.twofold("init", ok=True)
        faults = Faults(made, ground, seed=rotations)
        with writing(made):
            while not faults.done or fewest(ground) < rotations:
                faults.round()
                tell(ground, faults, began)
        topics = made.check()
        faults.run.stop()
    assert rotations < 200 or sum(map(len, ground.tokens.accepted.values())) >= 1000
    assert topics.rows
    said = "\n".join([done.stdout, done.stderr, *(run.said() for run in made.runs), *processes.seen])
    assert str(made.file) in said
    assert shown(said, ground) == set()


def fewest(ground: ExpiringGround) -> int:
    return min(map(len, ground.tokens.accepted.values()))


def tell(ground: ExpiringGround, faults: Faults, began: float) -> None:
    accepted = {name: len(used) for name, used in ground.tokens.accepted.items()}
    print(
        f"{time.monotonic() - began:.0f} s: accepted {accepted}, given {len(ground.tokens.expires)},"
        f" denied {dict(ground.tokens.denied)}, faults {dict(faults.done)}",
        flush=True,
    )


def shown(text: str, ground: ExpiringGround) -> set[str]:
    """What the text has of any secret."""
    secrets = {part for secret in ground.tokens.expires for part in secret.split(".")[1:] or [secret]}
    assert len(secrets) > 20
    return secrets & set(re.findall(r"[\w-]{16,}", text)) | set(re.findall("hunter2-[a-z]+-[0-9a-f]+", text))
