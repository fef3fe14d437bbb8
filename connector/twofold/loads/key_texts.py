"""From a message key's bytes to the values of the key's columns, as a query takes them.

Pure. A load continues behind the last published key, which its progress has as those bytes.
"""

from __future__ import annotations

import struct

from twofold_avro.shapes import TableShape
from twofold_avro.types import How, key_encoding_of


def key_texts(shape: TableShape, key: bytes) -> dict[str, str]:
    """Return the key's columns with their values in PostgreSQL's text form.

    `key` is a message key without its schema's id.
    """
    offset, texts = 0, {}

    def long() -> int:
        nonlocal offset
        number = shift = 0
        while True:
            byte = key[offset]
            offset += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (number >> 1) ^ -(number & 1)
            shift += 7

    def sized(size: int) -> bytes:
        nonlocal offset
        offset += size
        return key[offset - size : offset]

    for column in shape.key:
        encoding = key_encoding_of(column.type)
        how = How.TEXT if encoding.as_text else encoding.how
        match how:
            case How.INT | How.UNSIGNED:
                text = str(long())
            case How.BOOL:
                text = str(bool(sized(1)[0])).lower()
            case How.FLOAT4:
                text = repr(struct.unpack("<f", sized(4))[0])
            case How.FLOAT8:
                text = repr(struct.unpack("<d", sized(8))[0])
            case How.BYTES:
                text = "\\x" + sized(long()).hex()
            case _:
                text = sized(long()).decode()
        texts[column.name] = text
    assert offset == len(key), f"a key of {shape.schema}.{shape.table} has {len(key) - offset} bytes too many"
    return texts
