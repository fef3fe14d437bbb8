"""The schema registry, read only, with the standard library: the schemas of a topic's records.

The environment names the credentials, as the connector's: TWOFOLD_REGISTRY__USERNAME with
__PASSWORD_FILE or __PASSWORD_COMMAND, or __TOKEN_FILE or __TOKEN_COMMAND, and __CA_FILE.

A subject is read once and then remembered for the life of the process. So an absent registry does
not stop a mirror that knows its schemas. A job that meets an unknown schema id waits for the
registry, and then ends with a message that says so.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from twofold_avro.schemas import policy_of
from twofold_common.registry_http import (
    RegistryAway,
    RegistryHttp,
    RegistryRefusal,
    ask_credentials,
    certificate_remedy,
    subject_path,
)
from twofold_common.secret_sources import SecretCommand, SecretFile, SecretSource
from twofold_spark.errors import ServerAway, SetupError, UsageError

AvroSchema = dict[str, Any]
"""A parsed Avro schema of a record."""

_TIMEOUT_S = 10.0
PATIENCE_S = 30.0
"""How long a request is retried: as long as a registry needs to restart."""


@dataclass(frozen=True, slots=True)
class Subject:
    """All known versions of one subject, oldest first.

    Versions that were deleted come before all others.
    """

    name: str
    versions: tuple[tuple[int, AvroSchema], ...]
    """(schema id, schema)"""

    @property
    def ids(self) -> frozenset[int]:
        return frozenset(identifier for identifier, _ in self.versions)

    @property
    def latest(self) -> AvroSchema:
        return self.versions[-1][1]


class Registry:
    """A client of Confluent's API that only sends GET."""

    def __init__(self, url: str) -> None:
        ca_file = os.environ.get("TWOFOLD_REGISTRY__CA_FILE")
        user = os.environ.get("TWOFOLD_REGISTRY__USERNAME")
        password, token = (find_secret(f"TWOFOLD_REGISTRY__{secret}") for secret in ("PASSWORD", "TOKEN"))
        self._http = RegistryHttp(
            url,
            credentials=partial(ask_credentials, user, password, token),
            credentials_expire=bool(password or token),
            ca_file=Path(ca_file) if ca_file else None,
            request_timeout_s=_TIMEOUT_S,
            patience_s=PATIENCE_S,
        )
        self._subjects: dict[str, Subject] = {}
        self._no_schemas: set[int] = set()
        """Ids that the registry lacked for as long as an outage is waited for."""
        self._lock = threading.Lock()

    def find_subject(self, name: str) -> Subject | None:
        """Return the known subject, or ask the registry once; None if the registry has none."""
        with self._lock:
            known = self._subjects.get(name)
        return known or self.refresh_subject(name)

    def find_with_ids(self, name: str, ids: Iterable[int]) -> Subject | None:
        """Return the subject with the schemas of these ids, as far as the registry has them.

        Records have the ids, so somebody has registered them: a replica of the registry that lags
        behind is asked again. One wait is for all ids, and no id is waited for twice: others may
        write to a topic too.
        """
        subject = self.find_subject(name)
        if subject is None or not subject.ids.issuperset(ids):
            subject = self.refresh_subject(name)
        if subject is None:
            return None
        with self._lock:
            unknown = {each for each in ids if 0 < each < 2**31} - subject.ids - self._no_schemas
        for identifier in sorted(unknown):
            if self._get(f"/schemas/ids/{identifier}", is_registered=True) is None:
                break
        if unknown:
            subject = self.refresh_subject(name) or subject
            with self._lock:
                self._no_schemas |= unknown - subject.ids
        return subject

    def read_policy(self, topic: str) -> dict[str, str]:
        """Return the columns of a topic's rows that are under a data policy, with its actions."""
        subject = self.refresh_subject(f"{topic}-value")
        return policy_of(subject.latest) if subject is not None else {}

    def refresh_subject(self, name: str) -> Subject | None:
        """Ask the registry for the subject with all its present versions.

        Known versions are told apart by schema id. A subject that was deleted and recreated numbers
        its versions from one again, or continues behind the deleted ones.
        """
        numbers = self._get(f"{subject_path(name)}/versions")
        if numbers is None:
            return None
        with self._lock:
            known = self._subjects.get(name)
        present = dict(self._read_version(name, number) for number in sorted(cast("list[int]", numbers)))
        gone = [version for version in (known.versions if known else ()) if version[0] not in present]
        subject = Subject(name, (*gone, *present.items()))
        with self._lock:
            self._subjects[name] = subject
        return subject

    def _read_version(self, name: str, number: int) -> tuple[int, AvroSchema]:
        answer = self._get(f"{subject_path(name)}/versions/{number}")
        if answer is None:
            raise SetupError(
                f"the registry lists version {number} of {name}, but does not have it: start the job again"
            )
        return int(answer["id"]), json.loads(answer["schema"])

    def _get(self, path: str, *, is_registered: bool = False) -> Any:
        """Return the answer; None if the registry does not have it."""
        try:
            return self._http.ask(path, is_registered=is_registered)
        except RegistryAway as error:
            remedy = certificate_remedy(error, address="--registry", authorities="TWOFOLD_REGISTRY__CA_FILE")
            raise ServerAway(self._away(str(error), remedy)) from error
        except RegistryRefusal as error:
            if error.is_absent:
                return None
            if error.status in {401, 403}:
                raise SetupError(
                    f"the registry at {self._http.url} denies access (HTTP {error.status}): set "
                    "TWOFOLD_REGISTRY__USERNAME and TWOFOLD_REGISTRY__PASSWORD_FILE, or TWOFOLD_REGISTRY__TOKEN_FILE, "
                    "in the job's environment"
                ) from error
            if error.status >= 500:
                raise ServerAway(self._away(str(error))) from error
            raise SetupError(
                f"the registry answers {error.status} ({error.reason}) to {self._http.url}{path}: check --registry"
            ) from error

    def _away(self, reason: str, remedy: str | None = None) -> str:
        remedy = remedy or "start the registry, or correct --registry (Apicurio's ends with /apis/ccompat/v7)"
        return (
            f"the registry at {self._http.url} has not answered for {PATIENCE_S:g} s ({reason}): "
            f"{remedy}, then start the job; "
            "it continues where it was"
        )


def find_secret(variable: str) -> SecretSource | None:
    """Return where the secret comes from; None without one."""
    file, command = f"{variable}_FILE", f"{variable}_COMMAND"
    given = {name: text for name in (file, command) if (text := os.environ.get(name)) is not None}
    for name, text in given.items():
        if not text.strip():
            raise UsageError(f"environment {name} is empty, and no secret is: give it a value, or unset the variable")
    if len(given) > 1:
        raise UsageError(f"environment {file} and {command} give the same secret: unset one of them")
    if file in given:
        return SecretFile(file, Path(given[file]))
    if command not in given:
        return None
    try:
        arguments = json.loads(given[command])
    except ValueError:
        arguments = None
    if not (isinstance(arguments, list) and arguments and all(isinstance(each, str) for each in arguments)):
        raise UsageError(f'environment {command} must be a JSON list of texts, for example ["cat", "/run/secret"]')
    return SecretCommand(command, tuple(arguments))
