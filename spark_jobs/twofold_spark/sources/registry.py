"""The schema registry, read only, with the standard library: which schemas a topic's records were written with.

Who asks is said by the environment, by the connector's names for it: TWOFOLD_REGISTRY__USERNAME and __PASSWORD, or __TOKEN, and __CA_FILE.
Asked once and then remembered for the life of the process: a registry that is away does not stop a mirror whose schemas
are known. One that meets a new schema id waits for it, and then ends with a message that says so.
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

from twofold_spark.errors import MissingGround

Avro = dict[str, Any]
"""A parsed Avro schema of a record."""

_ABSENT = {40401, 40402, 40403}
"""The registry's own codes: it has no such subject, version or schema."""
_TIMEOUT_S = 10
PATIENCE_S = 30.0
"""How long an answer is asked for: as long as a registry takes to start anew."""
_PAUSE_S, _PAUSE_S_MAX = 0.1, 3.0


@dataclass(frozen=True, slots=True)
class Subject:
    """All versions of one subject that are known, oldest first: those that were deleted since, before those that are there."""

    name: str
    versions: tuple[tuple[int, Avro], ...]
    """(schema id, schema)"""

    @property
    def ids(self) -> frozenset[int]:
        return frozenset(identifier for identifier, _ in self.versions)

    @property
    def latest(self) -> Avro:
        return self.versions[-1][1]


class Registry:
    """`GET` alone, of Confluent's API."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json", **_authorization()}
        authorities = os.environ.get("TWOFOLD_REGISTRY__CA_FILE")
        self._context = ssl.create_default_context(cafile=authorities) if authorities else None
        self._subjects: dict[str, Subject] = {}
        self._lock = threading.Lock()

    def subject(self, name: str) -> Subject | None:
        """What is known of a subject, asked for the first time if need be; None if the registry has none."""
        with self._lock:
            known = self._subjects.get(name)
        return known or self.refreshed(name)

    def refreshed(self, name: str) -> Subject | None:
        """The subject with every version that the registry has now.

        By their ids: a subject that was deleted and made anew counts its versions from one again, or on from the deleted ones.
        """
        numbers = self._get(f"/subjects/{urllib.parse.quote(name, safe='')}/versions")
        if numbers is None:
            return None
        with self._lock:
            known = self._subjects.get(name)
        there = dict(self._version(name, number) for number in sorted(cast("list[int]", numbers)))
        gone = [version for version in (known.versions if known else ()) if version[0] not in there]
        subject = Subject(name, (*gone, *there.items()))
        with self._lock:
            self._subjects[name] = subject
        return subject

    def _version(self, name: str, number: int) -> tuple[int, Avro]:
        answer = self._get(f"/subjects/{urllib.parse.quote(name, safe='')}/versions/{number}")
        if answer is None:
            raise MissingGround(f"the registry lists version {number} of {name} and does not have it")
        return int(answer["id"]), json.loads(answer["schema"])

    def _get(self, path: str) -> Any:
        """Asked again and again for a while: asking changes nothing."""
        deadline, pause_s = time.monotonic() + PATIENCE_S, _PAUSE_S
        while True:
            try:
                return self._answer(path)
            except (OSError, HTTPException) as error:
                if time.monotonic() + pause_s > deadline:
                    raise MissingGround(
                        f"the registry at {self._url} has not answered for {PATIENCE_S:g} s ({error}): start it again, the job goes on where it was"
                    ) from error
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    def _answer(self, path: str) -> Any:
        request = urllib.request.Request(  # noqa: S310  (the address is the user's own)
            self._url + path, headers=self._headers
        )
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=self._context) as answer:  # noqa: S310
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code == 404 and _own_code(error) in _ABSENT:
                return None
            if error.code >= 500 or error.code == 404:  # as one that is about to start says, or a gateway before it
                raise
            if error.code in {401, 403}:
                raise MissingGround(
                    f"the registry at {self._url} does not let us in (HTTP {error.code}): set TWOFOLD_REGISTRY__USERNAME and "
                    "TWOFOLD_REGISTRY__PASSWORD, or TWOFOLD_REGISTRY__TOKEN, in the job's environment"
                ) from error
            raise MissingGround(f"the registry answers {error.code} to {self._url}{path}: {error.reason}") from error


def _own_code(error: urllib.error.HTTPError) -> int:
    """The registry's; 0: something else answers, and says nothing of what the registry has."""
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
