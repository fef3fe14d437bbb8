"""The systems that are compared, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from compare.ground import System
from compare.postgres import Subscription
from compare.twofold_mirror import Twofold

SYSTEMS: Final[Mapping[str, Callable[[], System]]] = {system.name: system for system in (Twofold, Subscription)}
