"""Says what is in doubt, for the page and the metrics: from the stream, from PostgreSQL, and by the
last answer of the reader of `inspect.in_doubt`.

The reader reads other connectors' topics, so nobody waits for it. It is asked while somebody looks
at the page; in a source group also, less often, when metrics are scraped. An outcome that would
tear a global transaction apart is not offered, and none before its other branches are known.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict
from itertools import chain
from typing import Any, NamedTuple

from twofold.errors import TwofoldError
from twofold.inspect.in_doubt import NOT_KNOWN, InDoubt, count_held_back
from twofold.watch.activity_view import ActivityView
from twofold.watch.in_doubt_log import InDoubtSpan
from twofold.watch.source_view import SourceView
from twofold_common.gids import Parse, describe, parse

_log = logging.getLogger(__name__)

LISTED_MAX = 200
BRANCHES_ASKED_S = 5.0
"""A younger prepared transaction usually gets its outcome without a person."""
ASKED_AGAIN_S, NEWER_ASKED_S = 15.0, 5.0
RESTS, RESTS_UNSEEN = 4, 20
"""After a question, this many times its duration passes before the next one; the second while no
person looks.
"""
KNOWN_FOR_S = 40.0
"""An older answer is not shown: a sibling may have its outcome meanwhile."""
Ask = Callable[[], tuple[Sequence[InDoubt], Sequence[str]]]
Key = tuple[int, str]


class _Listed(NamedTuple):
    """A prepared transaction of the list, without its other branches."""

    prepared_at: float
    each: InDoubt
    span: InDoubtSpan | None
    """None: the stream has not brought the transaction yet."""

    @property
    def key(self) -> Key:
        return self.each.xid, self.each.gid


class InDoubtAnswers:
    """What is in doubt, for page and metrics; `ask` returns it with the unread topics."""

    def __init__(self, ask: Ask, parse_gid: Parse = parse, clock: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._parse_gid = parse_gid
        self._clock = clock
        self._lock = threading.Lock()
        self._busy = False
        self._asked_at = self._answered_at = -ASKED_AGAIN_S
        self._wanted: frozenset[Key] = frozenset()
        self._known: dict[Key, InDoubt] = {}
        """The last answer, by xid and gid."""
        self._last: dict[Key, InDoubt] = {}
        """The last answer about each transaction, however old, by xid and gid."""
        self.unread: tuple[str, ...] = ()
        self.error = ""

    def list_all(self, view: ActivityView, source: SourceView | None, now: float) -> list[dict[str, Any]]:
        """Return all transactions in doubt, oldest first, with what PostgreSQL knows of them.

        The stream has not brought some of them yet.
        """
        found = self._gather(view, source, now)
        listed = found[:LISTED_MAX]
        self._want(_branches_of(listed))
        return [{**_entry(each), **self._ways_out(each)} for each in listed] + list(map(_entry, found[LISTED_MAX:]))

    def count_held_back(self, view: ActivityView, source: SourceView | None, now: float) -> tuple[int, int]:
        """Return two numbers by the last answer: of global transactions in doubt here that another
        member has committed, and of members' commit records that wait for them.
        """
        keys = _branches_of(self._gather(view, source, now))
        self._want(keys, rests=RESTS_UNSEEN)
        found = [known.held_back for key in keys if (known := self._last.get(key)) and known.held_back]
        return len(found), count_held_back(chain.from_iterable(found))

    def _gather(self, view: ActivityView, source: SourceView | None, now: float) -> list[_Listed]:
        at_source = {(each.xid, each.gid): each for each in (source.prepared if source else ())}
        found = []
        for (xid, gid), span in view.in_doubt.live.items():
            known = at_source.pop((xid, gid), None)
            owner, prepared_at = (known.owner, known.prepared_at) if known else ("", span.read_at)
            found.append(_Listed(prepared_at, self._describe(xid, gid, owner, now - prepared_at), span))
        for span in view.in_doubt.past:
            at_source.pop((span.identity.xid, span.identity.gid), None)
        found += [
            _Listed(each.prepared_at, self._describe(each.xid, each.gid, each.owner, now - each.prepared_at), None)
            for each in at_source.values()
        ]
        return sorted(found, key=lambda each: each.prepared_at)

    def _describe(self, xid: int, gid: str, owner: str, age_s: float) -> InDoubt:
        parsed = self._parse_gid(gid)
        return InDoubt(xid=xid, gid=gid, owner=owner, age_s=age_s, global_id=parsed.global_id, branch=parsed.branch)

    def _ways_out(self, listed: _Listed) -> dict[str, Any]:
        """Return the last answer's other branches of the transaction, and its statements."""
        known = self._known.get(listed.key)
        each = known or listed.each
        is_decided = listed.span is not None and listed.span.state == "committing"
        statements = () if is_decided else each.statements
        wait = NOT_KNOWN if known else self.error or "its other branches are being looked for"
        return {
            "global_id": each.global_id,
            "branch": each.branch,
            "siblings": list(each.siblings),
            "torn": each.torn,
            "held_back": [{**asdict(member), "shown": str(member)} for member in each.held_back],
            "statements": list(statements),
            "statements_wait": "" if statements or is_decided else wait,
        }

    def _want(self, keys: Collection[Key], *, rests: int = RESTS) -> None:
        """Ask about these branches in a thread of its own, unless the last question is recent.

        Return at once.
        """
        wanted = frozenset(keys)
        with self._lock:
            now = self._clock()
            if now - self._answered_at > KNOWN_FOR_S:
                self._known, self.unread = {}, ()
            due_s = NEWER_ASKED_S if wanted - self._wanted else ASKED_AGAIN_S
            due_s = max(due_s, (rests + 1) * (self._answered_at - self._asked_at))
            if not wanted or self._busy or now - self._asked_at < due_s:
                return
            self._busy, self._wanted, self._asked_at = True, wanted, now
        threading.Thread(target=self._read, name="status-branches", daemon=True).start()

    def _read(self) -> None:
        try:
            found, unread = self._ask()
            self._known = self._last = {(each.xid, each.gid): each for each in found}
            self.unread, self.error = tuple(unread), ""
        except TwofoldError as error:
            # What was offered before may have become wrong meanwhile.
            self._known, self.error = {}, str(error).partition("\n")[0]
        except Exception:
            self._known, self.error = {}, "an unforeseen error, see the log"
            _log.exception("the branches in doubt could not be read for the status page")
        finally:
            with self._lock:
                self._busy, self._answered_at = False, self._clock()


def _branches_of(listed: Iterable[_Listed]) -> list[Key]:
    """Return the branches of global transactions that are old enough to ask about."""
    return [found.key for found in listed if found.each.global_id and found.each.age_s > BRANCHES_ASKED_S]


def list_ended(view: ActivityView) -> list[dict[str, Any]]:
    """Return the prepared transactions that have an outcome, newest first."""
    return [_bar(span) for span in reversed(view.in_doubt.past)]


def _entry(listed: _Listed) -> dict[str, Any]:
    each, span = listed.each, listed.span
    named = {"gid": each.gid, "shown": describe(each.gid), "xid": each.xid, "rows": None, "state": "not yet read"}
    return {**(_bar(span) if span else named), "owner": each.owner, "prepared_at": listed.prepared_at}


def _bar(span: InDoubtSpan) -> dict[str, Any]:
    times = span._asdict()
    identity = times.pop("identity")
    return {"gid": identity.gid, "shown": describe(identity.gid), "xid": identity.xid, **times}
