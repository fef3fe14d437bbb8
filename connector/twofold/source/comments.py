"""Puts PostgreSQL's comments into a table's shape: COMMENT ON TABLE, COMMENT ON COLUMN.

The stream does not say them, and a COMMENT makes no Relation message. They are the catalog's of the
present, found by the columns' names.
"""

from __future__ import annotations

from twofold.source.connection import PlainConnection
from twofold_avro.comments import Comments, with_comments
from twofold_avro.names import avro_name
from twofold_avro.shapes import TableShape

LONGEST = 1000
"""Characters of a comment. A longer one is cut, because every reader has the schema in memory."""

_COMMENTS = """
SELECT a.attname::text, left(d.description, %s)
  FROM pg_catalog.pg_description d
  LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = d.objoid AND a.attnum = d.objsubid AND d.objsubid > 0
 WHERE d.classoid = 'pg_catalog.pg_class'::regclass AND d.objoid = %s
"""


def add_comments(connection: PlainConnection, shape: TableShape) -> TableShape:
    """Return the shape with the comments that the table and its columns have now."""
    rows = connection.execute(_COMMENTS, (LONGEST + 1, shape.oid)).fetchall()
    columns = {avro_name(column): shorten(text) for column, text in rows if column is not None}
    table = next((shorten(text) for column, text in rows if column is None), None)
    return with_comments(shape, Comments(table, columns))


def shorten(comment: str) -> str:
    """Return a comment that is not longer than `LONGEST`."""
    return comment if len(comment) <= LONGEST else comment[: LONGEST - 1] + "…"
