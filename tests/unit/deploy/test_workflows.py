"""What CI does can be done here: each step of the workflows, and of pre-commit, is a target of the
Makefile.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

ROOT = Path(__file__).parents[3]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def _steps(workflow: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(workflow.read_text())["jobs"].values()
    return [step for job in jobs for step in job["steps"]]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_each_step_is_a_make_target(workflow: Path) -> None:
    commands = [step["run"] for step in _steps(workflow) if "run" in step]
    assert commands
    for command in commands:
        called = re.fullmatch(r'make ([a-z-]+)( V="\$\{TAG#v\}")?', command)
        assert called, f"`{command}` is not a target of the Makefile"
        assert called[1] in TARGETS, f"the Makefile has no target {called[1]}"


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_github_s_own_and_pinned_by_commit(workflow: Path) -> None:
    """A tag may be moved by whoever takes an action over, and a job that may write runs it then."""
    used = re.findall(r"uses: (.*)", workflow.read_text())
    assert used
    for action in used:
        assert re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action


def test_the_unit_tests_run_on_every_python_that_the_packages_name() -> None:
    named = set(re.findall(r"Python :: (3\.\d+)", (ROOT / "connector/pyproject.toml").read_text()))
    matrix = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]["unit"]["strategy"]["matrix"]
    assert set(matrix["python"]) == named


def test_pre_commit_calls_make() -> None:
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    for hook in repository["hooks"]:
        make, target = hook["entry"].split()
        assert make == "make"
        assert target in TARGETS


def test_dependency_updates_look_where_dependencies_are() -> None:
    updates = yaml.safe_load((ROOT / ".github/dependabot.yml").read_text())["updates"]
    looked_for = {
        "uv": "uv.lock",
        "docker": "*Dockerfile",
        "github-actions": ".github/workflows/*.yml",
        "docker-compose": "docker-compose.yml",
    }
    assert {update["package-ecosystem"] for update in updates} == set(looked_for)
    for update in updates:
        assert list((ROOT / update["directory"].lstrip("/")).glob(looked_for[update["package-ecosystem"]]))


def test_make_knows_the_version_of_a_release_only_if_it_is_told() -> None:
    silent = subprocess.run(["make", "-n", "release"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert silent.returncode
    assert "say which: make release V=" in silent.stderr
