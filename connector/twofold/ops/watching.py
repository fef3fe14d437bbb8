"""A connector's process being watched: chronicle, sampler, metrics and server together, for as long as `twofold run` lasts."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from twofold.config import Config
from twofold.errors import TwofoldError
from twofold.ops.chronicle import Chronicle
from twofold.ops.health import Health, health
from twofold.ops.metrics import Metrics
from twofold.ops.mirror_view import MirrorView
from twofold.ops.sampler import Sampler
from twofold.ops.server import Answers, StatusServer
from twofold.ops.snapshot import snapshot

_log = logging.getLogger(__name__)

SLACK_S = 15.0
"""Beyond one call to Kafka at its bound, how long the loop may take to come round."""


@contextmanager
def watched(config: Config) -> Iterator[Chronicle]:
    """The Observer to give to the runner. An address that is taken costs the page, and not the run."""
    chronicle = Chronicle()
    with ExitStack() as opened:
        server = _serve(config, chronicle, opened) if config.status.listen != "none" else None
        try:
            yield chronicle
        except TwofoldError as error:
            chronicle.given_up(error)
            raise
        else:
            chronicle.stopped()
        finally:
            if server is not None:
                server.tell()


def _serve(config: Config, chronicle: Chronicle, opened: ExitStack) -> StatusServer | None:
    sampler = Sampler(config.conninfo, chronicle, MirrorView(config).look)
    bound_s = config.kafka.call_timeout + SLACK_S

    def state_of_health() -> Health:
        return health(chronicle.view(), turn_bound_s=bound_s)

    answers = Answers(
        status=lambda after: snapshot(
            config, chronicle.view(), state_of_health(), sampler, now=time.time(), after=after
        ),
        metrics=Metrics(config.name, config.slot, chronicle.view, state_of_health, sampler).text,
        health=state_of_health,
    )
    try:
        server = opened.enter_context(
            StatusServer(config.status.host, config.status.port, answers, config.status.bearer)
        )
    except OSError as error:
        _log.warning(
            "no status page, no metrics: %s: %s (status.listen; another connector may have the port)",
            config.status.listen,
            error.strerror or error,
        )
        return None
    opened.enter_context(sampler)
    _log.info("status page: http://%s:%d/", config.status.host, server.port)
    return server
