"""The suite's own parts: what the proxy does to connections, and what the keeper makes of a
process's end.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chaos.keeper import Keeper
from chaos.lanes import FAILPOINTS, KINDS
from chaos.mutants import MUTANTS, ROOT, Mutant
from chaos.plan import CUTS, MOMENTS, Lateness, draw
from chaos.proxy import Proxy
from fixtures.connector import wait_until
from late.rules import Cut, Moment
from twofold import failpoints
from twofold.stack.process import choose_port

TESTS = Path(__file__).parents[2]


def test_the_plan_knows_every_failpoint() -> None:
    assert set(FAILPOINTS) == failpoints.NAMES


def test_the_plan_knows_every_moment_of_a_late_request_and_how_its_client_notices() -> None:
    assert set(MOMENTS) == {*Moment, "kill", "failover"} - {Moment.COMMAND}
    assert set(CUTS) == set(Cut) - {Cut.LOST}, "a lost answer is no late request"
    faults = draw(1, KINDS).faults("late pool", KINDS)
    drawn = [Lateness.of(next(faults).detail) for _ in range(500)]
    assert {each.moment for each in drawn} == set(MOMENTS)
    assert {each.cut for each in drawn} == set(CUTS)
    assert {each.whose for each in drawn} == {"prepared"}


class Echo(threading.Thread):
    """A server that sends back what it is sent."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port = self.listening.getsockname()[1]

    def run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listening.accept()
                threading.Thread(target=self._echo, args=(connection,), daemon=True).start()

    @staticmethod
    def _echo(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while data := connection.recv(1000):
                connection.sendall(data)


@pytest.fixture
def fronted(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Proxy, int]]:
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    server = Echo()
    server.start()
    front = choose_port(None, "a front")
    proxy = Proxy({front: server.port})
    proxy.set(front, "pass")
    yield proxy, front
    proxy.close()
    server.listening.close()


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=0.5)


def says(connection: socket.socket, word: bytes) -> bool:
    connection.sendall(word)
    return connection.recv(100) == word


def test_a_cut_resets_connections_and_refuses_new_ones_until_it_is_healed(fronted: tuple[Proxy, int]) -> None:
    proxy, front = fronted
    with connect(front) as connection:
        assert says(connection, b"one")
        proxy.set(front, "cut")
        with pytest.raises(OSError, match="reset"):
            wait_until(lambda: not says(connection, b"two"))
    proxy.set(front, "pass")
    with connect(front) as connection:
        assert says(connection, b"three")


def test_what_was_frozen_arrives_later(fronted: tuple[Proxy, int]) -> None:
    proxy, front = fronted
    with connect(front) as connection:
        assert says(connection, b"one")
        proxy.set(front, "freeze")
        with pytest.raises(TimeoutError):
            says(connection, b"two")
        proxy.set(front, "pass")
        assert connection.recv(100) == b"two"


def test_a_half_open_connection_never_carries_a_byte_again_and_a_new_one_does(fronted: tuple[Proxy, int]) -> None:
    proxy, front = fronted
    with connect(front) as old:
        assert says(old, b"one")
        proxy.set(front, "halfopen")
        proxy.set(front, "pass")
        with pytest.raises(TimeoutError):
            says(old, b"two")
        with connect(front) as new:
            assert says(new, b"three")


def test_when_all_is_healed_who_holds_a_half_open_connection_is_told_and_others_stay(
    fronted: tuple[Proxy, int],
) -> None:
    proxy, front = fronted
    with connect(front) as old:
        assert says(old, b"one")
        proxy.set(front, "halfopen")
        proxy.set(front, "pass")
        with connect(front) as new:
            assert says(new, b"two")
            proxy.set(front, "heal")
            with pytest.raises(OSError, match="reset"):
                wait_until(lambda: not says(old, b"three"))
            assert says(new, b"four")


def test_a_delay_is_one(fronted: tuple[Proxy, int]) -> None:
    proxy, front = fronted
    with connect(front) as connection:
        assert says(connection, b"one")
        proxy.set(front, "delay", seconds=0.1)
        begun = time.monotonic()
        assert says(connection, b"two")
        assert time.monotonic() - begun >= 0.2, "there and back"


@pytest.fixture
def keep(tmp_path: Path) -> Iterator[Callable[..., Keeper]]:
    kept: list[Keeper] = []

    def start(program: str) -> Keeper:
        keeper = Keeper("kept", [sys.executable, "-c", program], tmp_path / "log", {})
        kept.append(keeper)
        keeper.start()
        return keeper

    yield start
    for keeper in kept:
        keeper.close()


SLEEPS = "import time; time.sleep(1000)"


def test_a_process_that_was_killed_comes_back_and_has_not_given_up(keep: Callable[..., Keeper]) -> None:
    keeper = keep(SLEEPS)
    for _ in range(2):
        wait_until(lambda: keeper.pid)
        starts = keeper.starts
        assert keeper.send(signal.SIGKILL)
        wait_until(lambda starts=starts: keeper.starts > starts)  # type: ignore[misc]
    assert keeper.ended == []


def test_one_that_ends_by_itself_has_given_up(keep: Callable[..., Keeper]) -> None:
    keeper = keep("print('I refuse'); raise SystemExit(5)")
    wait_until(lambda: keeper.ended)
    status, words = keeper.ended[0]
    assert (status, words) == (5, "I refuse")
    wait_until(lambda: keeper.starts > 1)


def test_one_that_crashed_has_said_why_above_the_stacks_of_its_threads(keep: Callable[..., Keeper]) -> None:
    keeper = keep("print('*** a.c:1: assert ***\\nFatal Python error: Aborted\\n' + '  a frame\\n' * 90, flush=True); import os; os.abort()")  # fmt: skip
    wait_until(lambda: keeper.ended)
    status, words = keeper.ended[0]
    assert status == -signal.SIGABRT
    assert words.startswith("*** a.c:1: assert ***\nFatal Python error: Aborted\n  a frame")


def test_a_stop_that_is_not_obeyed_is_told(keep: Callable[..., Keeper]) -> None:
    keeper = keep("import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(1000)")  # fmt: skip
    wait_until(lambda: "deaf" in keeper.log.read_text() if keeper.log.exists() else False)
    keeper.stop(0, patience_s=0.3)
    assert "SIGTERM did not end it" in keeper.ended[0][1]


def test_one_that_is_killed_while_it_stops_was_not_deaf(keep: Callable[..., Keeper]) -> None:
    keeper = keep("import signal, time; signal.signal(signal.SIGTERM, lambda *_: print('stopping', flush=True)); print('up', flush=True)\nwhile True: time.sleep(1)")  # fmt: skip
    wait_until(lambda: "up" in keeper.log.read_text() if keeper.log.exists() else False)
    stopping = threading.Thread(target=keeper.stop, args=(0,))
    stopping.start()
    wait_until(lambda: "stopping" in keeper.log.read_text())
    assert keeper.send(signal.SIGKILL)
    stopping.join(20)
    assert keeper.ended == []


def test_what_is_kept_ends_with_its_keeper(keep: Callable[..., Keeper]) -> None:
    keeper = keep(SLEEPS)
    wait_until(lambda: keeper.pid)
    pid = keeper.pid
    keeper.close()
    assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize("name", ["checker", "checks", "reading", "journal", "tables"])
def test_the_checker_knows_nothing_of_the_product(name: str) -> None:
    """Not through another module either: it is loaded where the product cannot be imported."""
    program = (
        f"import sys; sys.modules.update(twofold=None, twofold_avro=None, twofold_spark=None); import chaos.{name}"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, "PYTHONPATH": str(TESTS)})


def test_a_moved_clock_moves_the_wall_clock_alone(tmp_path: Path) -> None:
    offset = tmp_path / "clock"
    offset.write_text("-86400")
    program = "import time; a = time.monotonic(); time.sleep(0.1); print(time.time(), time.time_ns() / 1e9, time.monotonic() - a)"
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(TESTS / "chaos" / "clock"), "CHAOS_CLOCK": str(offset)},
    )  # fmt: skip
    wall, wall_ns, slept = map(float, done.stdout.split())
    assert abs(wall - time.time() + 86400) < 60
    assert abs(wall_ns - wall) < 1
    assert 0.1 <= slept < 10


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_what_a_mutant_breaks_is_there_once(mutant: Mutant) -> None:
    assert (ROOT / mutant.file).read_text().count(mutant.old) == 1
