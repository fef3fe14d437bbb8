"""Secrets that the job's environment has, under the connector's names.

A variable that ends in _COMMAND has a command as a JSON list: each connection asks it.
"""

from __future__ import annotations

import json
import os

from twofold_common.secret_command import SecretCommand
from twofold_spark.errors import UsageError


def read_secret(variable: str) -> str | None:
    """Return the secret that the variable has; None if it is not set."""
    text = os.environ.get(variable)
    if text is not None and not text.strip():
        raise UsageError(f"environment {variable} is empty, and no secret is: give it a value, or unset the variable")
    return text


def find_command(variable: str) -> SecretCommand | None:
    """Return the command that the variable has; None without one."""
    text = read_secret(variable)
    if text is None:
        return None
    try:
        arguments = json.loads(text)
    except ValueError:
        arguments = None
    if not (isinstance(arguments, list) and arguments and all(isinstance(each, str) for each in arguments)):
        raise UsageError(f'environment {variable} must be a JSON list of texts, for example ["cat", "/run/secret"]')
    return SecretCommand(variable, tuple(arguments))
