"""Checks the schema registry by its HTTP API: answers, schemas, compatibility."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request

from twofold.config import Config, RegistryConfig
from twofold.doctor.finding import Finder, Finding
from twofold.errors import SetupError, Unreachable
from twofold_common.http_client import open_url
from twofold_common.registry_http import ask_credentials, certificate_remedy, describe_cause

_NARROW = {"FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE"}
_finding = Finder("registry")


def examine(config: Config) -> Iterator[Finding]:
    """Ask for the mode and for the compatibility."""
    registry = config.registry
    _ask(registry, "/subjects")
    mode = _ask(registry, "/mode").get("mode", "READWRITE")
    if mode != "READWRITE":
        yield _finding.must(
            "mode",
            f"the registry's mode is {mode}",
            "no schema can be registered: twofold init, a new table and every change of a table's columns wait for it",
            _put(registry, "mode", {"mode": "READWRITE"}),
        )
    level = str(_ask(registry, "/config").get("compatibilityLevel", "NONE"))
    if level in _NARROW:
        yield _finding.should(
            "compatibility",
            f"the registry's compatibility is {level}",
            "a column that is added to a table, or dropped from it, may be refused, and then the connector refuses",
            _put(registry, "config", {"compatibility": "BACKWARD"}),
        )
    elif level == "NONE":
        yield _finding.note(
            "compatibility",
            "the registry checks no compatibility (NONE)",
            "a column's type may change so that readers cannot read older and newer rows together",
            _put(registry, "config", {"compatibility": "BACKWARD"}),
        )


def _put(registry: RegistryConfig, what: str, value: dict[str, str]) -> str:
    return f"curl -X PUT -H 'Content-Type: application/vnd.schemaregistry.v1+json' -d '{json.dumps(value)}' {registry.url.rstrip('/')}/{what}"


def _ask(registry: RegistryConfig, path: str) -> dict[str, Any]:
    """Return the answer; empty if this kind of registry does not know the question."""
    headers = {"Accept": "application/vnd.schemaregistry.v1+json"}
    headers |= ask_credentials(registry.username, registry.password, registry.token)
    if not registry.url.startswith(("http://", "https://")):
        raise SetupError(f'registry.url is {registry.url}; remedy: registry.url = "http://host:port"')
    request = Request(registry.url.rstrip("/") + path, headers=headers)  # noqa: S310  (checked above)
    context = ssl.create_default_context(cafile=str(registry.ca_file)) if registry.ca_file else None
    try:
        with open_url(request, timeout_s=registry.timeout, context=context) as answer:
            found = json.load(answer)
    except HTTPError as error:
        if error.code in {401, 403}:
            raise SetupError(
                f"the registry at {registry.url} denies access (HTTP {error.code}); remedy: correct registry.username and its password, or the token"
            ) from error
        if 300 <= error.code < 400:
            raise SetupError(
                f"the registry at {registry.url} answers HTTP {error.code}: {error.reason}; remedy: if you trust that address, set registry.url to it"
            ) from error
        if path == "/subjects":
            raise SetupError(
                f"the server at {registry.url} is no registry with Confluent's API (HTTP {error.code} to /subjects); remedy: correct registry.url (Apicurio's ends with /apis/ccompat/v7)"
            ) from error
        return {}
    except json.JSONDecodeError as error:
        raise SetupError(f"the server at {registry.url} is no schema registry; remedy: correct registry.url") from error
    except (URLError, OSError) as error:
        remedy = certificate_remedy(error, address="registry.url", authorities="registry.ca_file")
        more = f"; remedy: {remedy}" if remedy else ""
        raise Unreachable(f"the registry at {registry.url} does not answer: {describe_cause(error)}{more}") from error
    return found if isinstance(found, dict) else {}
