"""What a connector that runs says of itself on its status page, for a command beside it."""

from __future__ import annotations

import json
from http.client import HTTPException
from urllib.request import Request, urlopen

from twofold.config import Config

ANSWER_S = 1.0
_ALL = "1e18"
"""Samples after this time: none."""


def ask_behind_bytes(config: Config) -> int | None:
    """The lag that the page shows; None if no page of this connector answers from here."""
    if config.status.listen == "none" or not config.status.port:
        return None
    headers = {"Authorization": f"Bearer {config.status.bearer}"} if config.status.bearer else {}
    address = f"http://{config.status.listen}/api/status?after={_ALL}"
    try:
        with urlopen(Request(address, headers=headers), timeout=ANSWER_S) as answer:
            said = json.load(answer)
        path = said["path"]
        if (said["name"], path["slot"], path["prefix"]) != (config.name, config.slot, config.prefix):
            return None
        return None if path["behind_bytes"] is None else int(path["behind_bytes"])
    except (OSError, HTTPException, ValueError, KeyError, TypeError):
        return None  # not here, or not ours: what is known from outside is shown
