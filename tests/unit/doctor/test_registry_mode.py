"""Modes of the registry in which it gives no schema an id of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from twofold.config import Config, load
from twofold.doctor import Severity, registry

ANSWERS: dict[str, Any] = {"/subjects": {}, "/config": {"compatibilityLevel": "BACKWARD"}}


def config(folder: Path) -> Config:
    file = folder / "bank.toml"
    file.write_text(
        'name = "bank"\n[source]\ndsn = "dbname=bank"\n[kafka]\nbootstrap = "127.0.0.1:1"\n[registry]\nurl = "http://registry:8081/"\n'
    )
    return load(file)


@pytest.mark.parametrize(
    ("mode", "is_found"), [("READWRITE", False), ("IMPORT", True), ("READONLY", True), ("READONLY_OVERRIDE", True)]
)
def test_only_one_mode_lets_the_connector_register(
    mode: str, *, is_found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = {**ANSWERS, "/mode": {"mode": mode}}
    monkeypatch.setattr(registry, "_ask", lambda _, path: answers[path])
    found = list(registry.examine(config(tmp_path)))
    assert [(each.check, each.severity) for each in found] == ([("mode", Severity.MUST)] if is_found else [])
    for each in found:
        assert mode in each.what
        assert """-d '{"mode": "READWRITE"}' http://registry:8081/mode""" in each.remedy[0]
