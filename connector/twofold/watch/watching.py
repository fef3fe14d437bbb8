"""Serve a connector's status for as long as `twofold run` lasts."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from twofold.config import Config
from twofold.errors import TwofoldError
from twofold.inspect.in_doubt import add_branches, read_in_doubt
from twofold.inspect.status_report import read_progress
from twofold.watch.activity import Activity
from twofold.watch.in_doubt_answers import InDoubtAnswers
from twofold.watch.metrics import Metrics
from twofold.watch.mirror_view import MirrorView
from twofold.watch.sampler import Sampler
from twofold.watch.server import Health, StatusServer, StatusSources, judge_health
from twofold.watch.snapshot import take_snapshot
from twofold.watch.visibility import Visibility
from twofold_common.gids import parser

_log = logging.getLogger(__name__)

SLACK_S = 15.0
"""Beyond one call to Kafka at its bound, how long the loop may take to come round."""


@contextmanager
def serve_status(config: Config) -> Iterator[Activity]:
    """Give the observer for the run. If the address is taken, the run goes on without a page."""
    activity = Activity()
    with ExitStack() as opened:
        server = _serve(config, activity, opened) if config.status.listen != "none" else None
        try:
            yield activity
        except TwofoldError as error:
            activity.given_up(error)
            raise
        else:
            activity.stopped()
        finally:
            if server is not None:
                server.await_poll()


def _serve(config: Config, activity: Activity, opened: ExitStack) -> StatusServer | None:
    sampler = Sampler(config.conninfo, activity, MirrorView(config).read)
    in_doubt = InDoubtAnswers(
        lambda: add_branches(config, read_in_doubt(config, read_progress(config))), parser(config.prepared.gid_patterns)
    )
    bound_s = config.kafka.call_timeout + SLACK_S

    def health() -> Health:
        return judge_health(activity.view(), turn_bound_s=bound_s)

    def held_back() -> tuple[int, int]:
        return in_doubt.count_held_back(activity.view(), sampler.source, time.time())

    in_group = held_back if config.group.name is not None else None
    sources = StatusSources(
        status=lambda after: take_snapshot(config, activity, health(), sampler, in_doubt, now=time.time(), after=after),
        metrics=Metrics(config.name, config.slot, activity.view, health, sampler, in_group).text,
        health=health,
        wait=Visibility(lambda: activity.view().of_run, MirrorView(config).read).wait,
    )
    try:
        server = opened.enter_context(
            StatusServer(config.status.host, config.status.port, sources, config.status.token)
        )
    except OSError as error:
        _log.warning(
            "no status page, no metrics: %s: %s; remedy: choose another port with status.listen, or end what has it",
            config.status.listen,
            error.strerror or error,
        )
        return None
    opened.enter_context(sampler)
    _log.info("status page: http://%s:%d/", config.status.host, server.port)
    return server
