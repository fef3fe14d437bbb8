"""Parses gids: the forms of known coordinators, as a global transaction and a branch.

    pgjdbc's XA      1234_Z3RyaWQ=_YnF1YWw=   format id, global id and branch in base64
    psycopg's Xid    1234_Z3RyaWQ=_YnF1YWw=   the same form
    Citus            citus_0_1234_7_2         coordinator's group, process, transaction, connection
    PgDog            __pgdog_2pc_a1b2_77_0    deployment and instance, if named; number; shard
    Npgsql           <uuid>/4242              the distributed transaction, the backend's process
    PostgreSQL       pg_gid_16394_741         a subscription's oid and the remote xid

Narayana, Atomikos and Bitronix prepare through pgjdbc. The patterns of `prepared.gid_patterns` come
before these forms. A gid of no known form is opaque: it has neither global transaction nor branch.
Two branches of one global transaction have the same global id, in whatever database they were
prepared. docs/inside/group.md says where the forms are from.
"""

from __future__ import annotations

import base64
import binascii
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class ParsedGid:
    """A gid's global transaction and branch; both None if it is opaque."""

    global_id: str | None = None
    branch: str | None = None


OPAQUE = ParsedGid()
Parse = Callable[[str], ParsedGid]
"""A function as `parse`, with the patterns of the configuration."""

_NARAYANA = 131077
"""The format id of Narayana (JBoss, WildFly, Quarkus).

Its ids are five numbers: two of 8 bytes, three of 4.
"""
_UID = struct.Struct(">qqiii")
_SHOWN_MAX = 60
_XA = re.compile(r"(-?\d{1,10})_([A-Za-z0-9+/]*={0,2})_([A-Za-z0-9+/]*={0,2})", re.ASCII)
_CITUS = re.compile(r"citus_(\d+)_(\d+)_(\d+)_(\d+)", re.ASCII)
_HEX = "\\x"
_PGDOG = re.compile(r"__pgdog_2pc_((?:.+_)?\d+)_(\d+)", re.ASCII)
_UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_NPGSQL = re.compile(rf"({_UUID})/(\d+)", re.ASCII)
_SUBSCRIBER = re.compile(r"pg_gid_(\d+)_(\d+)", re.ASCII)


@lru_cache(maxsize=64)
def parse(gid: str) -> ParsedGid:  # noqa: PLR0911  (one form a return)
    """Parse a gid. Never fails: an unknown form is opaque.

    Cached, because a transaction's rows and its prepare ask for the same gid soon after each other.
    """
    if "_" not in gid and "/" not in gid:
        return OPAQUE
    if found := _XA.fullmatch(gid):
        global_part, branch = _base64(found[2]), _base64(found[3])
        if global_part is not None and branch is not None:
            return ParsedGid(f"{found[1]}:{global_part}", branch)
    if found := _CITUS.fullmatch(gid):
        group, process, transaction, connection = found.groups()
        return ParsedGid(f"citus:{group}:{process}:{transaction}", connection)
    if found := _PGDOG.fullmatch(gid):
        return ParsedGid(f"pgdog:{found[1]}", found[2])
    if found := _NPGSQL.fullmatch(gid):
        return ParsedGid(f"npgsql:{found[1]}", found[2])
    if found := _SUBSCRIBER.fullmatch(gid):
        return ParsedGid(f"pg_gid:{found[2]}", found[1])
    return OPAQUE


@lru_cache(maxsize=8)
def parser(patterns: tuple[str, ...]) -> Parse:
    """Return `parse` with these patterns before the known forms.

    A pattern has the groups `global` and `branch`, and must match the whole gid. One that matches
    with an empty group is passed over.
    """
    if not patterns:
        return parse
    compiled = tuple(map(re.compile, patterns))

    @lru_cache(maxsize=64)
    def parse_own(gid: str) -> ParsedGid:
        for pattern in compiled:
            if (found := pattern.fullmatch(gid)) and found["global"] and found["branch"]:
                return ParsedGid(found["global"], found["branch"])
        return parse(gid)

    return parse_own


def find_global_id(gid: str, recorded: str | None, patterns: tuple[str, ...]) -> str | None:
    """Return the global transaction of a branch in a record, as these patterns read its gid.

    The record has the name that the patterns of its time gave; who compares it with what is in
    doubt needs the name of today. A gid that these patterns do not read keeps the record's.
    """
    return parser(patterns)(gid).global_id or recorded


def _base64(text: str) -> str | None:
    """Return the decoded bytes as text, else in PostgreSQL's form of bytes, \\x00ff; None if not
    base64.

    Two gids never have the same text.
    """
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error:
        return None
    try:
        decoded = data.decode()
    except UnicodeDecodeError:
        return _HEX + data.hex()
    return decoded if decoded.isprintable() and not decoded.startswith(_HEX) else _HEX + data.hex()


def describe(gid: str) -> str:
    """Return global transaction and branch as the coordinator's own log prints them.

    Long ones lose their middle, because branches differ at the end.
    """
    if (found := _XA.fullmatch(gid)) and int(found[1]) == _NARAYANA and (said := _narayana(found[2], found[3])):
        return said
    parsed = parse(gid)
    if parsed.global_id is None:
        return shortened(gid)
    branch = f" branch {shortened(parsed.branch)}" if parsed.branch else ""
    return f"{shortened(parsed.global_id)}{branch}"


def shortened(text: str) -> str:
    """Return about 60 characters: the beginning and the end."""
    half = _SHOWN_MAX // 2
    return text if len(text) <= _SHOWN_MAX else f"{text[:half]}…{text[-half:]}"


def _narayana(global_part: str, branch: str) -> str | None:
    try:
        globally, branchwise = base64.b64decode(global_part, validate=True), base64.b64decode(branch, validate=True)
        node = globally[_UID.size :].decode()
        return f"tx_uid={_uid(globally)} node_name={node} branch_uid={_uid(branchwise)}"
    except (binascii.Error, struct.error, UnicodeDecodeError):
        return None


def _uid(data: bytes) -> str:
    return ":".join(f"{number:x}" for number in _UID.unpack_from(data))
