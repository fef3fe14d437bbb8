"""PostgreSQL's comments, as a row's record carries them: COMMENT ON TABLE and COMMENT ON COLUMN.

They are the `doc` of the record and of its fields, and say nothing of the bytes. Pure; standard
library only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from twofold_avro.names import avro_name
from twofold_avro.shapes import TableShape

_OF_ROW, _OF_ENVELOPE = "A row of ", "A change of a row of "
_MARK = "twofold.comments"
"""The property of a row's record that changes with its comments.

Some registries (Apicurio) take schemas that differ in `doc` alone for one."""


@dataclass(frozen=True, slots=True)
class Comments:
    """The comments of a table, and of its columns by their names in Avro."""

    table: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)


def row_doc(table: str) -> str:
    """Return the `doc` of the row of a table without a comment."""
    return f"{_OF_ROW}{table}."


def envelope_doc(table: str) -> str:
    return f"{_OF_ENVELOPE}{table}."


def mark_comments(row: dict[str, Any], table: str) -> dict[str, Any]:
    """Mark the comments of a row's record, if it has some."""
    docs = [row["doc"], *(column.get("doc") for column in row["fields"])]
    if docs[0] == row_doc(table) and not any(docs[1:]):
        return row
    text = json.dumps(docs, ensure_ascii=False)
    return {**row, _MARK: hashlib.sha256(text.encode()).hexdigest()[:16]}


def read_comments(envelope: Any) -> Comments:
    """Return the comments of an envelope's row; none for a record that another program made."""
    if envelope["name"] != "Envelope":
        return Comments()
    row = envelope["fields"][0]["type"][1]
    columns = {column["name"]: column["doc"] for column in row["fields"] if column.get("doc")}
    doc, table = row.get("doc"), envelope.get("doc", "").removeprefix(_OF_ENVELOPE)
    return Comments(None if doc == _OF_ROW + table else doc, columns)


def with_comments(shape: TableShape, comments: Comments) -> TableShape:
    """Return the shape with these comments, and no others."""
    columns = tuple(replace(column, comment=comments.columns.get(avro_name(column.name))) for column in shape.columns)
    return replace(shape, columns=columns, comment=comments.table)
