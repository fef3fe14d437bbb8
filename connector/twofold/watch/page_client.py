"""Ask a running connector for what its status page shows, for a command beside it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any
from urllib.request import Request

from twofold.config import Config
from twofold.errors import Unreachable
from twofold_common.http_client import open_url
from twofold_common.registry_http import authorization

ANSWER_S = 1.0
_AFTER_ALL = "1e18"
"""Samples after this time: none."""


@dataclass(frozen=True, slots=True)
class PageAnswer:
    """The facts that only the running process knows."""

    behind_bytes: int | None
    behind_s: float | None
    cause: str
    """Why it is behind, or empty."""
    cause_since: float | None
    mirror_gone_since: float | None
    slow: str | None
    """Why its rows are slow, where its row path is not compiled."""


def ask_page(config: Config) -> PageAnswer | None:
    """None: no page of this connector answers from here."""
    if config.status.listen == "none" or not config.status.port:
        return None
    address = f"http://{config.status.listen}/api/status?after={_AFTER_ALL}"
    try:
        headers = authorization(bearer=config.status.token.ask() if config.status.token else None)
        with open_url(Request(address, headers=headers), timeout_s=ANSWER_S) as answer:
            return _parse(json.load(answer), config)
    except (Unreachable, OSError, HTTPException, ValueError, KeyError, TypeError):
        return None  # the page of another connector, or none: what is known from outside is shown


def _parse(said: dict[str, Any], config: Config) -> PageAnswer | None:
    path, cause, mirror = said["path"], said["cause"] or {}, said["mirror"] or {}
    if (said["name"], path["slot"], path["prefix"]) != (config.name, config.slot, config.prefix):
        return None
    return PageAnswer(
        None if path["behind_bytes"] is None else int(path["behind_bytes"]),
        path["behind_s"],
        cause.get("words", ""),
        cause.get("since"),
        mirror.get("gone_since"),
        said.get("slow"),
    )
