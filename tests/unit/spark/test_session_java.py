"""The Java of a job that makes its own session: the one that was named, else one that fits."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from twofold_common import java
from twofold_spark import session
from twofold_spark.errors import TwofoldError


@pytest.fixture(autouse=True)
def no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without Java, where JAVA_HOME is not set."""
    monkeypatch.setenv("JAVA_HOME", "restored after the test")
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setattr(java, "_homes", lambda: iter([]))


def test_the_package_brings_java_where_the_machine_has_none() -> None:
    session._choose_java(None)
    assert os.environ["JAVA_HOME"] == str(java.spark_java_home())


def test_the_named_java_comes_before_java_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    named = str(java.spark_java_home())
    session._choose_java(named)
    assert os.environ["JAVA_HOME"] == named


def test_a_java_home_without_java_is_not_silently_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(TwofoldError, match=f"{tmp_path}/bin/java does not exist: correct JAVA_HOME"):
        session._choose_java(None)


def test_no_java_at_all_is_told_with_the_package_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_wheel", lambda: None)
    with pytest.raises(
        TwofoldError, match=r"Spark wants Java 17 or 21, this machine has none: pip install 'twofold\[stack\]'"
    ):
        session._choose_java(None)
