"""Secrets that expire, of PostgreSQL, Kafka and the registry: the connector asks its commands
again, never stops, loses nothing, and shows no secret.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from fixtures.connector import START_S, Installation, Running, wait_until
from fixtures.secured import SECRETS, Secured
from helpers.security.guards import basic, guarded
from twofold.config import load as load_configuration
from twofold.doctor import Severity, examine
from twofold.kafka.kafka_secrets import KafkaSecrets
from twofold_common.secret_sources import SecretCommand, SecretFile

NAMES = ("postgres", "kafka", "registry")


class Rotation:
    """The three secrets. The servers know one each, and the commands print one each."""

    def __init__(self, secured: Secured, folder: Path) -> None:
        self._secured = secured
        self._folder = folder
        self.accepted = dict(SECRETS)
        self.given: list[str] = []
        self.registry_denied = 0
        self.admin = psycopg.connect(secured.postgres.dsn("bank"), autocommit=True)
        for name in NAMES:
            self.tell(name)

    def command(self, name: str) -> list[str]:
        return ["cat", str(self._folder / name)]

    def expire(self, name: str) -> None:
        """From now on the server accepts another secret, which the command does not print yet."""
        secret = self.accepted[name] = f"hunter2-{name}-{secrets.token_hex(8)}"
        self.given.append(secret)
        if name == "postgres":
            self.admin.execute(f"ALTER ROLE twofold PASSWORD '{secret}'")
        if name == "kafka":
            self._secured.scram("twofold", secret)

    def tell(self, name: str) -> None:
        """The command prints the secret that is accepted; nobody reads half of it."""
        new = self._folder / f"{name}.new"
        new.write_text(f"{self.accepted[name]}\n")
        new.chmod(0o600)
        new.replace(self._folder / name)

    def check(self, header: str) -> bool:
        """Whether the registry lets the caller in."""
        right = header == basic("twofold", self.accepted["registry"])
        self.registry_denied += not right
        return right

    def disconnect(self) -> None:
        self.admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'twofold'")

    def close(self) -> None:
        self.admin.close()


@pytest.fixture
def rotation(granted: Secured, tmp_path: Path) -> Iterator[Rotation]:
    granted.sql(f"ALTER ROLE twofold PASSWORD '{SECRETS['postgres']}'")
    granted.scram("twofold", SECRETS["kafka"])
    made = Rotation(granted, tmp_path)
    yield made
    made.close()


@contextmanager
def beside(work: Callable[[], None], ended: threading.Event) -> Iterator[None]:
    """Let the work run on a thread until it is told that the block has ended."""
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class Load:
    """Writes rows with the ids 1, 2, 3 and so on while the test runs."""

    def __init__(self, secured: Secured) -> None:
        self._dsn = secured.postgres.dsn("bank")
        self._ended = threading.Event()
        with psycopg.connect(self._dsn) as connection:
            row = connection.execute("SELECT coalesce(max(id), 0) FROM transfers").fetchone()
        self.written: int = row[0] if row else 0

    @contextmanager
    def running(self) -> Iterator[Load]:
        with beside(self._write, self._ended):
            yield self

    def _write(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            while not self._ended.wait(0.05):
                connection.execute("INSERT INTO transfers VALUES (%s, 1)", (self.written + 1,))
                self.written += 1


class CommandLines:
    """Those of all processes, as `ps` shows them, while the test runs."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self.seen: set[str] = set()

    @contextmanager
    def watched(self) -> Iterator[CommandLines]:
        with beside(self._look, self._ended):
            yield self

    def _look(self) -> None:
        while not self._ended.wait(0.1):
            for process in Path("/proc").glob("[0-9]*"):
                with suppress(OSError):  # it has ended
                    self.seen.add((process / "cmdline").read_text(errors="replace"))


def installed(rotation: Rotation, secured: Secured, folder: Path, door: str, registry: str) -> Installation:
    made = Installation(folder, "bank", secured.dsn, secured.kafka.bootstrap, registry, {})
    made._parts["source"] |= {"tables": [], "password_command": rotation.command("postgres")}
    made._parts["registry"] = {
        "url": door,
        "username": "twofold",
        "password_command": rotation.command("registry"),
        "ca_file": str(secured.authority.certificate),
    }
    made._parts["kafka"] |= {
        "bootstrap": secured.sasl,
        "call_timeout": 10,
    }
    made.configure({"log": {"level": "debug"}})
    return made


def options(secured: Secured, mechanism: str, **more: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(secured.authority.certificate),
        "sasl.mechanism": mechanism,
        **more,
    }


@pytest.mark.slow
def test_rotation_under_load_stops_nothing_and_tells_no_secret(
    rotation: Rotation, granted: Secured, registry: Any, tmp_path: Path
) -> None:
    """Each rotation: a secret expires, the connector is denied, then the command has the next."""
    with ExitStack() as ending:
        door = ending.enter_context(guarded(registry.url, rotation.check, granted.authority))
        made = installed(rotation, granted, tmp_path, door, registry.url)
        ending.callback(made.close)
        scram = options(granted, "SCRAM-SHA-512", **{"sasl.username": "twofold"})
        made.configure({"kafka": {"password_command": rotation.command("kafka"), "options": scram}})
        processes = ending.enter_context(CommandLines().watched())
        done = made.twofold("init", ok=True)
        run = made.start()
        tail = made.tail("transfers")
        denials: dict[str, Callable[[], int]] = {
            "postgres": lambda: run.said().count("authentication failed for user"),
            "kafka": lambda: run.said().count("Kafka denies the password"),
            "registry": lambda: rotation.registry_denied,
        }
        with Load(granted).running() as load:
            for name in NAMES:
                before = denials[name]()
                rotation.expire(name)
                rotation.disconnect()  # the next run logs in everywhere
                wait_until(lambda: run.dead or denials[name]() > before, START_S, f"{name} denies")  # noqa: B023
                rotation.tell(name)
                reached = load.written
                tail.wait_for(lambda s: s.value["after"]["id"] > reached, START_S, unless=lambda: run.dead)  # noqa: B023
        wait_for_each_row_once(made, run, load)
        findings = examine(load_configuration(made.file))
        run.stop()
    assert [found for found in findings if found.severity is Severity.MUST] == []
    assert "hunter2" not in f"{done.stdout}{done.stderr}{run.said()}{findings}"
    assert any(str(made.file) in line for line in processes.seen)
    assert not [line for line in processes.seen if any(secret in line for secret in rotation.given)]


@pytest.mark.parametrize("way", ["file", "command"])
def test_rotation_reaches_a_client_that_was_denied(rotation: Rotation, granted: Secured, way: str) -> None:
    """The same client gets in, with the password that its file or its command has later."""
    rotation.expire("kafka")
    command = rotation.command("kafka")
    file, asked = SecretFile("kafka.password_file", Path(command[1])), SecretCommand("", tuple(command))
    secrets_of_kafka = KafkaSecrets(file if way == "file" else asked)
    settings = options(granted, "SCRAM-SHA-512", **{"sasl.username": "twofold", "bootstrap.servers": granted.sasl})
    client = secrets_of_kafka.open(AdminClient, settings)  # it has the expired one
    rotation.tell("kafka")

    def brokers() -> Any:
        with suppress(KafkaException):
            return client.list_topics(timeout=2).brokers
        client.poll(0)
        return None

    assert wait_until(brokers, START_S)


PROVIDER = """
import base64, json, time
from pathlib import Path

def part(value):
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

def give(folder):
    now = time.time()
    token = part({"alg": "none"}) + "." + part({"sub": "twofold", "iat": now, "exp": now + 5}) + "."
    with (Path(folder) / "given").open("a") as given:
        given.write(token + "\\n")
    if (Path(folder) / "fails").exists():
        raise RuntimeError(token)
    return token, (now + 5) * 1000
"""
"""Tokens that live 5 s, unsigned, which Kafka's own validator takes. The expiry is in milliseconds,
as MSK's signer gives it."""


@pytest.mark.slow
def test_rotation_of_tokens_that_a_callable_gives(
    rotation: Rotation, granted: Secured, registry: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker ends sessions whose token has expired. The callable fails for a while."""
    (tmp_path / "provider_of_tokens.py").write_text(PROVIDER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.syspath_prepend(tmp_path)
    given, fails = tmp_path / "given", tmp_path / "fails"
    with ExitStack() as ending:
        door = ending.enter_context(guarded(registry.url, rotation.check, granted.authority))
        made = installed(rotation, granted, tmp_path, door, registry.url)
        ending.callback(made.close)
        bearer = options(granted, "OAUTHBEARER", **{"sasl.oauthbearer.config": str(tmp_path)})
        made.configure({"kafka": {"token_provider": "provider_of_tokens:give", "options": bearer}})
        processes = ending.enter_context(CommandLines().watched())
        done = made.twofold("init", ok=True)
        run = made.start()
        tail = made.tail("transfers")
        with Load(granted).running() as load:
            before = len(given.read_text().split())
            wait_until(lambda: run.dead or len(given.read_text().split()) > before + 3, START_S, "tokens")
            fails.touch()
            wait_until(lambda: run.dead or "token_provider gave no token (RuntimeError)" in run.said(), START_S)
            fails.unlink()
            reached = load.written
            tail.wait_for(lambda s: s.value["after"]["id"] > reached, START_S, unless=lambda: run.dead)
        wait_for_each_row_once(made, run, load)
        run.stop()
    told = "\n".join([done.stdout, done.stderr, run.said(), *processes.seen])
    assert not [token for token in given.read_text().split() if token.split(".")[1] in told]


def wait_for_each_row_once(made: Installation, run: Running, load: Load) -> None:
    wait_until(lambda: run.dead or len(ids(made)) >= load.written, START_S)
    assert not run.dead, run.said()[-2000:]
    assert sorted(ids(made)) == list(range(1, load.written + 1))


def ids(made: Installation) -> list[Any]:
    """The ids in the topic of transfers, as a read_committed reader has them."""
    return [seen.value["after"]["id"] for seen in made.read("transfers")]
