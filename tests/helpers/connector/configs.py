"""Configurations without servers behind them."""

from __future__ import annotations

from typing import Any

from twofold.config import Config


def make_config(name: str, **sections: Any) -> Config:
    """Return a configuration with what it must have; `sections` add to it."""
    needed: dict[str, Any] = {
        "source": {"dsn": ""},
        "kafka": {"bootstrap": "localhost:9092"},
        "registry": {"url": "http://localhost"},
    }
    given = {section: needed.get(section, {}) | values for section, values in sections.items()}
    return Config.model_validate({"name": name} | needed | given)
