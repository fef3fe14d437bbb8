"""Transactions in doubt for the page: from the stream, from PostgreSQL, and what is known of their
other branches.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from itertools import chain
from typing import Any

from twofold.gids import Parse, describe, parse
from twofold.group.in_doubt_warnings import statements
from twofold.group.siblings import NOT_KNOWN, count_held_back
from twofold.watch.activity_view import ActivityView
from twofold.watch.branch_view import RESTS_UNSEEN, BranchView, Key
from twofold.watch.in_doubt_log import InDoubtSpan
from twofold.watch.sampler import Sampler

LISTED_MAX = 200
BRANCHES_ASKED_S = 5.0
"""A younger one gets its outcome without a person."""


def list_in_doubt(
    view: ActivityView, sampler: Sampler, branches: BranchView, now: float, parse_gid: Parse = parse
) -> list[dict[str, Any]]:
    """Oldest first: those of the stream with what PostgreSQL knows of them, and those that the
    stream has not brought yet.
    """
    found = _list_all(view, sampler)
    listed = found[:LISTED_MAX]
    branches.want(_find_branches(listed, now, parse_gid))
    return [{**each, **_ways_out(each, branches, parse_gid)} for each in listed] + found[LISTED_MAX:]


def count_held_back_by(
    view: ActivityView, sampler: Sampler, branches: BranchView, now: float, parse_gid: Parse = parse
) -> tuple[int, int]:
    """Return how many global transactions in doubt here another member has committed, and how many
    of the members' commit records wait for them, by the last answer.
    """
    keys = _find_branches(_list_all(view, sampler), now, parse_gid)
    branches.want(keys, rests=RESTS_UNSEEN)
    found = [known.held_back for key in keys if (known := branches.last.get(key)) and known.held_back]
    return len(found), count_held_back(chain.from_iterable(found))


def _list_all(view: ActivityView, sampler: Sampler) -> list[dict[str, Any]]:
    at_source = {(each.xid, each.gid): each for each in (sampler.source.prepared if sampler.source else ())}
    found = []
    for identity, span in view.in_doubt.live.items():
        known = at_source.pop((identity.xid, identity.gid), None)
        found.append(
            {
                **_span(span),
                "owner": known.owner if known else "",
                "prepared_at": known.prepared_at if known else span.read_at,
            }
        )
    ended = {(span.identity.xid, span.identity.gid) for span in view.in_doubt.past}
    found += [
        {
            "gid": each.gid,
            "shown": describe(each.gid),
            "xid": each.xid,
            "rows": None,
            "state": "not yet read",
            "owner": each.owner,
            "prepared_at": each.prepared_at,
        }
        for key, each in at_source.items()
        if key not in ended
    ]
    found.sort(key=lambda each: float(each["prepared_at"]))
    return found


def _find_branches(listed: Iterable[dict[str, Any]], now: float, parse_gid: Parse) -> list[Key]:
    """Return those of global transactions that are old enough to ask about."""
    return [
        (each["xid"], each["gid"])
        for each in listed
        if parse_gid(each["gid"]).global_id and now - each["prepared_at"] > BRANCHES_ASKED_S
    ]


def list_settled(view: ActivityView) -> list[dict[str, Any]]:
    """Those with an outcome, newest first."""
    return [_span(span) for span in reversed(view.in_doubt.past)]


def _ways_out(each: dict[str, Any], branches: BranchView, parse_gid: Parse) -> dict[str, Any]:
    """The statements that keep the global transaction whole, as `twofold prepared list` has them.
    None are offered before its other branches are known.
    """
    parsed = parse_gid(each["gid"])
    said: dict[str, Any] = {
        "global_id": parsed.global_id,
        "branch": parsed.branch,
        "siblings": [],
        "torn": False,
        "held_back": [],
    }
    if parsed.global_id is None:
        own = () if each["state"] == "committing" else statements(each["gid"])
        return {**said, "statements": list(own), "statements_wait": ""}
    known = branches.known.get((each["xid"], each["gid"]))
    if known is None:
        return {
            **said,
            "statements": [],
            "statements_wait": branches.error or "its other branches are being looked for",
        }
    return {
        **said,
        "statements": list(known.statements),
        "statements_wait": "" if known.statements else NOT_KNOWN,
        "siblings": list(known.siblings),
        "torn": known.torn,
        "held_back": [{**asdict(each), "shown": str(each)} for each in known.held_back],
    }


def _span(span: InDoubtSpan) -> dict[str, Any]:
    return {
        "gid": span.identity.gid,
        "shown": describe(span.identity.gid),
        "xid": span.identity.xid,
        "rows": span.rows,
        "state": span.state,
        "read_at": span.read_at,
        "opened_at": span.opened_at,
        "parked_at": span.parked_at,
        "park_reason": span.park_reason,
        "ended_at": span.ended_at,
        "outcome": span.outcome,
    }
