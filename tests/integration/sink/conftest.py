"""The sink's fixtures: a connector's ground on the session's servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from integration.sink.sink_ground import Ground
from twofold.kafka.names import Names
from twofold.kafka.schema_registry import Registry, register_fixed
from twofold.kafka.watch import Watch


@pytest.fixture
def make_ground(registry: Any) -> Iterator[Callable[..., Ground]]:
    with ExitStack() as ending:

        def make(bootstrap: str, prefix: str, **options: Any) -> Ground:
            client = Registry(registry.url)
            watch = Watch()
            ending.callback(watch.close)
            names = Names(prefix, "me")
            ground = Ground(bootstrap, names, client, register_fixed(client, names), watch, ending, options)
            ground.topics().ensure(ground.wanted())
            return ground

        yield make


@pytest.fixture
def ground(make_ground: Callable[..., Ground], kafka: Any, prefix: str) -> Ground:
    return make_ground(kafka.bootstrap, prefix)
