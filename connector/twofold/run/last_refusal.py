"""The last refusal: why `twofold run` ended by itself, for the next command that a person runs.

A file in the spool's folder keeps the refusal for when Kafka is away. A record in the progress
topic keeps it for other machines. The next Kafka transaction of a main producer removes the record:
the refusal is overcome. A file cannot bring back a refusal that Kafka had and no longer has.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from twofold.config import Config
from twofold.errors import Fenced, Refused, TwofoldError, UsageError
from twofold.kafka.backfill_commands import write_outside
from twofold.kafka.kafka_settings import kafka_settings, names_of
from twofold.kafka.metadata import ask_brokers
from twofold.kafka.progress import RecoveredState

_WAIT_S = 5.0
"""The longest wait for Kafka of a process that ends."""


@dataclass(frozen=True, slots=True)
class LastRefusal:
    """Any error that has ended a run and that a person has to overcome."""

    at: float
    error: str
    """The name of its class."""
    exit_status: int
    what: str
    at_stake: str
    repair: str
    in_kafka: bool = False

    @classmethod
    def of(cls, error: TwofoldError) -> LastRefusal:
        if isinstance(error, Refused):
            parts = error.what, error.at_stake, error.repair
        else:
            what, _, remedy = str(error).partition("; remedy: ")
            parts = what, "nothing is published before it is repaired", remedy or "see the message"
        return cls(time.time(), type(error).__name__, error.exit_status, *parts)

    @classmethod
    def read(cls, text: str) -> LastRefusal | None:
        """Return the value; None if another version or program wrote it."""
        try:
            return cls(**json.loads(text))
        except (TypeError, ValueError):
            return None

    @property
    def clock(self) -> str:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.at))

    def __str__(self) -> str:
        return f"at {self.clock} with status {self.exit_status}: {self.what}"


def remember(config: Config, error: TwofoldError) -> None:
    """Keep why this run ends. If keeping it fails, the error itself is still reported."""
    if isinstance(error, Fenced):
        return
    refusal = LastRefusal.of(error)
    if not isinstance(error, UsageError):  # its topics may be another connector's
        with suppress(TwofoldError):
            refusal = replace(refusal, in_kafka=_tell_kafka(config, replace(refusal, in_kafka=True)))
    with suppress(OSError):
        path = _path(config)
        path.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
        path.write_text(_as_text(refusal))


def recall(config: Config, recovered: RecoveredState | None) -> LastRefusal | None:
    """Return the refusal that nobody has overcome. `recovered` None: Kafka cannot be asked."""
    in_file = _in_file(config)
    in_kafka = LastRefusal.read(recovered.refusal) if recovered is not None and recovered.refusal else None
    if in_file is not None and in_file.in_kafka and recovered is not None:
        in_file = None
    return max(filter(None, (in_file, in_kafka)), key=lambda each: each.at, default=None)


def forget(config: Config) -> None:
    """Remove the file. The record goes with the next commit."""
    with suppress(OSError):
        _path(config).unlink()


def forget_where_kafka_does_not_know(config: Config) -> None:
    """Remove the file of a refusal that a finished recovery has shown to be overcome."""
    in_file = _in_file(config)
    if in_file is not None and not in_file.in_kafka:
        forget(config)


def _tell_kafka(config: Config, refusal: LastRefusal) -> bool:
    """Write the record if the topic exists: a producer's question could create it."""
    names = names_of(config)
    settings = kafka_settings(config)
    settings = replace(settings, call_timeout_s=min(_WAIT_S, settings.call_timeout_s))
    _, metadata = ask_brokers(settings, settings.call_timeout_s)
    if names.progress not in metadata.topics:
        return False
    write_outside(settings, names, [(names.refusal_key, _as_text(refusal).encode())])
    return True


def _as_text(refusal: LastRefusal) -> str:
    return json.dumps(asdict(refusal))


def _in_file(config: Config) -> LastRefusal | None:
    try:
        return LastRefusal.read(_path(config).read_text())
    except OSError:
        return None


def _path(config: Config) -> Path:
    return config.spool.folder / f"{config.name}.refusal.json"
