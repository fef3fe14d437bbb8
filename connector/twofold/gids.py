"""What a global transaction identifier says: the forms that coordinators are known to use, as a global transaction and a branch.

    pgjdbc's XA      1234_Z3RyaWQ=_YnF1YWw=   format id, base64 of the global id, base64 of the branch
    psycopg's Xid    1234_Z3RyaWQ=_YnF1YWw=   the same form
    Citus            citus_0_1234_7_2          coordinator's group, process, transaction number, connection number
    PostgreSQL       pg_gid_16394_741          a subscription's oid and the remote xid

What is in no known form is opaque: it has neither. Two branches of one global transaction have the same global id, in whatever database they were prepared.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class ParsedGid:
    """Both None: opaque."""

    global_id: str | None = None
    branch: str | None = None


_XA = re.compile(r"(-?\d{1,10})_([A-Za-z0-9+/]*={0,2})_([A-Za-z0-9+/]*={0,2})", re.ASCII)
_CITUS = re.compile(r"citus_(\d+)_(\d+)_(\d+)_(\d+)", re.ASCII)
_HEX = "\\x"
_SUBSCRIBER = re.compile(r"pg_gid_(\d+)_(\d+)", re.ASCII)


@lru_cache(maxsize=64)
def parse(gid: str) -> ParsedGid:
    """Never fails: an unknown form is opaque. A transaction's is asked for by its rows and by its prepare, one soon after the other."""
    if found := _XA.fullmatch(gid):
        global_part, branch = _base64(found[2]), _base64(found[3])
        if global_part is not None and branch is not None:
            return ParsedGid(f"{found[1]}:{global_part}", branch)
    if found := _CITUS.fullmatch(gid):
        group, process, transaction, connection = found.groups()
        return ParsedGid(f"citus:{group}:{process}:{transaction}", connection)
    if found := _SUBSCRIBER.fullmatch(gid):
        return ParsedGid(f"pg_gid:{found[2]}", found[1])
    return ParsedGid()


def _base64(text: str) -> str | None:
    """The decoded bytes as text if they are that, else as PostgreSQL writes bytes, \\x00ff; None if it is not base64. Never the same for two."""
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error:
        return None
    try:
        decoded = data.decode()
    except UnicodeDecodeError:
        return _HEX + data.hex()
    return decoded if decoded.isprintable() and not decoded.startswith(_HEX) else _HEX + data.hex()
