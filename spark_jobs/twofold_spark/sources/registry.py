"""The schema registry, read only, with the standard library: the schemas of a topic's records.

The environment has the credentials, under the connector's names: TWOFOLD_REGISTRY__USERNAME and
__PASSWORD, or __TOKEN, and __CA_FILE.

A subject is read once and then remembered for the life of the process. So an absent registry does
not stop a mirror that knows its schemas. A job that meets an unknown schema id waits for the
registry, and then ends with a message that says so.
"""

from __future__ import annotations

import base64
import json
import os
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any, cast

from twofold_spark.errors import SetupError

AvroSchema = dict[str, Any]
"""A parsed Avro schema of a record."""

_ABSENT = {40401, 40402, 40403}
"""The registry's own codes: no such subject, version or schema."""
_TIMEOUT_S = 10
PATIENCE_S = 30.0
"""How long a request is retried: as long as a registry needs to restart."""
_PAUSE_S, _PAUSE_S_MAX = 0.1, 3.0


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
        self._url = url.rstrip("/")
        self._headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json", **_authorization()}
        authorities = os.environ.get("TWOFOLD_REGISTRY__CA_FILE")
        self._context = ssl.create_default_context(cafile=authorities) if authorities else None
        self._subjects: dict[str, Subject] = {}
        self._lock = threading.Lock()

    def find_subject(self, name: str) -> Subject | None:
        """Return the known subject, or ask the registry once; None if the registry has none."""
        with self._lock:
            known = self._subjects.get(name)
        return known or self.refresh_subject(name)

    def refresh_subject(self, name: str) -> Subject | None:
        """Ask the registry for the subject with all its present versions.

        Known versions are told apart by schema id. A subject that was deleted and recreated numbers
        its versions from one again, or continues behind the deleted ones.
        """
        numbers = self._get(f"/subjects/{urllib.parse.quote(name, safe='')}/versions")
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
        answer = self._get(f"/subjects/{urllib.parse.quote(name, safe='')}/versions/{number}")
        if answer is None:
            raise SetupError(
                f"the registry lists version {number} of {name}, but does not have it: start the job again"
            )
        return int(answer["id"]), json.loads(answer["schema"])

    def _get(self, path: str) -> Any:
        """Send GET, and retry for a while; a repeated GET changes nothing."""
        deadline, pause_s = time.monotonic() + PATIENCE_S, _PAUSE_S
        while True:
            try:
                return self._get_once(path)
            except (OSError, HTTPException) as error:
                if time.monotonic() + pause_s > deadline:
                    raise SetupError(
                        f"the registry at {self._url} has not answered for {PATIENCE_S:g} s ({error}): "
                        "start the registry, then the job; the job continues where it was"
                    ) from error
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    def _get_once(self, path: str) -> Any:
        request = urllib.request.Request(  # noqa: S310  (the address is the user's own)
            self._url + path, headers=self._headers
        )
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=self._context) as answer:  # noqa: S310
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code == 404 and _registry_code(error) in _ABSENT:
                return None
            if error.code >= 500 or error.code == 404:  # a registry that is about to start, or a gateway before it
                raise
            if error.code in {401, 403}:
                raise SetupError(
                    f"the registry at {self._url} denies access (HTTP {error.code}): set TWOFOLD_REGISTRY__USERNAME and "
                    "TWOFOLD_REGISTRY__PASSWORD, or TWOFOLD_REGISTRY__TOKEN, in the job's environment"
                ) from error
            raise SetupError(
                f"the registry answers {error.code} ({error.reason}) to {self._url}{path}: check --registry"
            ) from error


def _registry_code(error: urllib.error.HTTPError) -> int:
    """Return the registry's own error code; 0 if another server answered for it."""
    try:
        return int(json.load(error)["error_code"])
    except (ValueError, KeyError, TypeError, OSError):
        return 0


def _authorization() -> dict[str, str]:
    if token := os.environ.get("TWOFOLD_REGISTRY__TOKEN"):
        return {"Authorization": f"Bearer {token}"}
    if user := os.environ.get("TWOFOLD_REGISTRY__USERNAME"):
        pair = f"{user}:{os.environ.get('TWOFOLD_REGISTRY__PASSWORD', '')}"
        return {"Authorization": "Basic " + base64.b64encode(pair.encode()).decode()}
    return {}
