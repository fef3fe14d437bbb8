"""Write docs/reference/configuration.md from the models that read the configuration.

    python deploy/settings_page.py > docs/reference/configuration.md

A test says when the page is out of date.
"""

from __future__ import annotations

import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from twofold.config import Config

_NAMES = {str: "text", int: "integer", float: "number", bool: "boolean", Path: "path"}
_HEAD = """\
# Configuration

The configuration is one TOML file: `twofold -c bank.toml ...`, or `TWOFOLD_CONFIG`, or
`twofold.toml` in the working directory. [twofold.toml](twofold.toml) is a commented example. Times
are seconds, sizes are bytes.

Environment variables override the file, or replace it. A variable is `TWOFOLD_` and the setting's
path in capitals, joined by two underscores: `TWOFOLD_PREPARED__HOLD`. Lists and tables are JSON:
`TWOFOLD_SOURCE__TABLES='["public.*"]'`.

`twofold config check` names mistakes, unknown settings too, and contacts no server. `twofold config
show` prints all values.

**Secrets.** No setting holds a secret. A secret is the first line of a file (`..._file`) or of what
a command prints (`..._command`); [each connection asks again](../inside/secrets-that-expire.md). A
file that is empty is refused. librdkafka's other secrets are in `kafka.options_file`.

**Refused options.** `kafka.options` must not set `acks`, `enable.idempotence`, `isolation.level`
and [some more](../inside/kafka.md#settings-that-are-refused), nor `source.dsn` `replication`,
`client_encoding` and `load_balance_hosts`.

This page is generated from `connector/twofold/config/`.
"""


def reference() -> str:
    """Return the whole page."""
    return "\n".join([_HEAD, *_sections(Config, ""), ""])


def _sections(model: type[BaseModel], path: str) -> Iterator[str]:
    plain = _plain(model)
    yield f"## {f'`[{path}]`' if path else 'Top level'}\n"
    if path and model.__doc__:
        yield f"{model.__doc__.strip()}\n"
    yield "| setting | type, default | meaning |\n|---|---|---|"
    for name, field in plain.items():
        what = (field.description or "").replace("|", "\\|")
        kind = f"{_type(field.annotation)}, {_default(field)}"
        yield f"| `{f'{path}.' if path else ''}{name}` | {kind} | {what} |"
    yield ""
    for name, field in model.model_fields.items():
        if part := _part(field):
            yield from _sections(part, f"{path}.{name}" if path else name)
    for name, field in plain.items():
        for inner in get_args(field.annotation):
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                yield from _sections(inner, f"[{path}.{name}]" if path else f"[{name}]")


def settings(model: type[BaseModel] = Config, path: str = "") -> Iterator[tuple[str, str, str]]:
    """Return every setting by its path, with its type and its default."""
    for name, field in _plain(model).items():
        yield f"{path}{name}", _type(field.annotation), _default(field)
    for name, field in model.model_fields.items():
        if part := _part(field):
            yield from settings(part, f"{path}{name}.")


def _plain(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return the settings that have no settings of their own."""
    return {name: field for name, field in model.model_fields.items() if _part(field) is None}


def _part(field: FieldInfo) -> type[BaseModel] | None:
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _type(kind: Any) -> str:
    inner = [each for each in get_args(kind) if each is not type(None)]
    match get_origin(kind):
        case typing.Annotated:
            return _type(inner[0])
        case typing.Literal:
            return " or ".join(f"`{each}`" for each in inner)
        case typing.Union | types.UnionType:
            return " or ".join(_type(each) for each in inner)
        case origin if origin is tuple:
            return f"list of {_type(inner[0])}"
        case _:
            return _NAMES.get(kind, "table")


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "**required**"
    if value is None:
        return "none"
    if isinstance(value, tuple) and value:
        return ", ".join(f"`{each}`" for each in value)
    if isinstance(value, tuple | dict):
        return "empty"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


if __name__ == "__main__":
    sys.stdout.write(reference())
