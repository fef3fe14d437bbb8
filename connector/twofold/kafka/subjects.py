"""A table's subjects in the registry: their schemas, and what a new one must keep."""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

from twofold.errors import Refused, SetupError, TwofoldError
from twofold.kafka.schema_registry import NotRegistered, Registry, full_name, key_subject, value_subject
from twofold_avro.comments import read_comments, with_comments
from twofold_avro.names import namespace_of
from twofold_avro.records import Pin
from twofold_avro.schemas import canonical, envelope_schema, key_schema, misread, newly_hidden, optional_columns
from twofold_avro.shapes import TableShape
from twofold_avro.types import encoding_of
from twofold_common.table_names import reload_command

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_Item = TypeVar("_Item")
_SIDE_BY_SIDE = 8
"""The number of questions about many tables that are asked at once."""
RequireRules = Callable[[TableShape, Any, str | None], None]
"""Refuses a shape that would show what an earlier envelope hid.

The last argument is the table's former name, if it has had another.
"""


class Subjects:
    """The subjects of one prefix."""

    def __init__(self, registry: Registry, prefix: str, require_rules: RequireRules = lambda *_: None) -> None:
        self._registry = registry
        self._prefix = prefix
        self._require_rules = require_rules
        self._versions: dict[str, list[str]] = {}
        """The versions of the subjects of topics whose schemas are about to be registered."""

    def read_versions(self, topics: Iterable[str]) -> None:
        """Read the versions of these topics' subjects, several at once.

        They count until the topic's next registration, or until `forget_versions`.
        """
        asked = list(topics)
        read = _side_by_side(lambda topic: self._registry.versions(value_subject(topic)), asked)
        self._versions = dict(zip(asked, read, strict=True))

    def forget_versions(self) -> None:
        self._versions = {}

    def key(self, shape: TableShape) -> str | None:
        """Return the message key's schema; None without a key."""
        key = key_schema(shape, self._prefix)
        return None if key is None else canonical(key)

    def like_before(self, shape: TableShape, topic: str, pin: Pin | None) -> TableShape:
        """Keep optional columns optional when they come into the key.

        Readers of earlier rows could not continue otherwise, and registries refuse the schema.
        Refused: a column that the data policy hides may have another name now.
        """
        before = self._last_envelope(topic, pin)
        if before is None:
            return shape
        self._require_rules(shape, json.loads(before), None)
        optional = _optional_columns(before)
        kept = {c.name for c in shape.key if c.name in optional and encoding_of(c.type).total}
        return replace(shape, columns=tuple(replace(c, optional=c.name in kept) for c in shape.columns))

    def require_former_rules(self, shape: TableShape, topic: str, pin: Pin) -> None:
        """Refuse a renamed table if the data policy hid columns under the former name alone.

        `topic` and `pin` belong to the former name.
        """
        before = self._last_envelope(topic, pin)
        if before is not None:
            self._require_rules(shape, json.loads(before), f"{pin.schema}.{pin.table}")

    def newly_hidden(self, shape: TableShape, topic: str) -> dict[str, str]:
        """Return the columns that the topic's last rows show and the data policy hides, with its
        actions.
        """
        before = self._last_envelope(topic, None)
        return {} if before is None else newly_hidden(json.loads(before), envelope_schema(shape, self._prefix))

    def _last_envelope(self, topic: str, pin: Pin | None) -> str | None:
        if pin and pin.value_schema_id is not None:
            return self._pinned_envelope(pin, pin.value_schema_id)
        known = self._versions.get(topic)
        versions = self._registry.versions(value_subject(topic)) if known is None else known
        return versions[-1] if versions else None

    def _pinned_envelope(self, pin: Pin, schema_id: int, *, again: bool = False) -> str:
        """Return the envelope of the table's last rows.

        Refused: the registry has lost it, or has given its id to another schema. `again`: it may
        have lost what it said before.
        """
        try:
            envelope = self._registry.schema(schema_id, again=again)
        except NotRegistered as error:
            raise _envelope_id_changed(pin, "no schema") from error
        name = full_name(envelope)
        if name != f"{namespace_of(self._prefix, pin.schema, pin.table)}.Envelope":
            raise _envelope_id_changed(pin, name)
        return envelope

    def ask_ahead(self, topic: str, pin: Pin) -> None:
        """Ask for the ids that the table's first row needs, register nothing, remember them."""
        if pin.value_schema_id is not None and not self._registry.has_latest(value_subject(topic), pin.value_schema_id):
            text = canonical(json.loads(self._registry.schema(pin.value_schema_id)))
            self._registry.known_id(value_subject(topic), text)
        if pin.key_schema is not None:
            self._registry.known_id(key_subject(topic), pin.key_schema)

    def known_envelope(self, shape: TableShape, topic: str) -> int | None:
        """Return the envelope's id if it is registered; register nothing."""
        return self._registry.known_id(value_subject(topic), self._envelope(shape))

    def is_like_pinned(self, shape: TableShape, topic: str, pin: Pin) -> bool:
        """Whether the envelope differs from the pinned one in comments at most."""
        if pin.value_schema_id is None:
            return False
        pinned = self._registry.schema(pin.value_schema_id)
        return self._find_alike(shape, topic, [json.loads(pinned)]) == pin.value_schema_id

    def _find_alike(self, shape: TableShape, topic: str, versions: Sequence[Any]) -> int | None:
        """Return the id of the last version that differs in comments at most; None without one.

        The registry compares: it may give schemas back in another form.
        """
        shapes = [with_comments(shape, read_comments(version)) for version in reversed(versions)]
        for text in dict.fromkeys(map(self._envelope, shapes)):
            known = self._registry.known_id(value_subject(topic), text)
            if known is not None:
                return known
        return None

    def register_key(self, key: str | None, topic: str) -> int | None:
        """Register the key's schema and return its id; None without a key."""
        return None if key is None else self._registry.register(key_subject(topic), key)

    def register_envelope(self, shape: TableShape, topic: str, pin: Pin | None = None) -> int:
        """Register the envelope's schema after comparing it with every version.

        Rows of each version may lie in the topic, and a dropped column may come back with another
        type. A comment stops nothing: if the registry does not take it, rows are written with a
        version that differs in comments alone.

        A registry that was restored from a backup would give the last version's id again, and the
        rows that have it another schema. So the last version must be there.
        """
        if pin is not None and pin.value_schema_id is not None:
            self._pinned_envelope(pin, pin.value_schema_id, again=True)
        subject, text = value_subject(topic), self._envelope(shape)
        new = json.loads(text)
        known_versions = self._versions.pop(topic, None)
        texts = self._registry.versions(subject) if known_versions is None else known_versions
        versions = [json.loads(version) for version in texts]
        for version in versions:
            if columns := misread(version, new):
                raise _misread_columns(shape, columns)
        try:
            registered = self._registry.register(subject, text)
        except TwofoldError as error:
            known = self._find_alike(shape, topic, versions)
            if known is None:
                raise
            _log.warning("%s.%s: its comments are not in the schema: %s", shape.schema, shape.table, error)
            return known
        if versions and (hidden := newly_hidden(versions[-1], new)):
            what, remedy = readable_rows(shape, topic, hidden)
            _log.warning("%s; remedy: %s", what, remedy)
        return registered

    def register_all(self, tables: Sequence[tuple[TableShape, str]]) -> list[int]:
        """Register these tables' schemas, several at once; return the envelopes' ids."""

        def register(table: tuple[TableShape, str]) -> int:
            shape, topic = table
            self.register_key(self.key(shape), topic)
            return self.register_envelope(shape, topic)

        return _side_by_side(register, tables)

    def withdraw_key(self, shape: TableShape, topic: str) -> None:
        """Delete the key's subject of a table without a key any more: readers would expect keys."""
        try:
            self._registry.withdraw(key_subject(topic))
        except SetupError as error:
            name = f"{shape.schema}.{shape.table}"
            _log.warning("%s no longer has a message key; delete the subject %s: %s", name, key_subject(topic), error)

    def _envelope(self, shape: TableShape) -> str:
        return canonical(envelope_schema(shape, self._prefix))


def _side_by_side(call: Callable[[_Item], _T], items: Sequence[_Item]) -> list[_T]:
    """Return each item's result; several calls are made at once.

    After an error no further call begins, and the error of the first of the items is raised. The
    waiting thread may give up, as at a stop: the threads do not keep the process from its end.
    """
    left, results, errors = deque(enumerate(items)), dict[int, _T](), dict[int, BaseException]()

    def work() -> None:
        while left and not errors:
            try:
                number, item = left.popleft()
            except IndexError:  # another thread has the last one
                return
            try:
                results[number] = call(item)
            except BaseException as error:
                errors[number] = error

    threads = [
        threading.Thread(target=work, name=f"registry-{number}", daemon=True)
        for number in range(min(_SIDE_BY_SIDE, len(left)))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[min(errors)]
    return [results[number] for number in range(len(items))]


def readable_rows(shape: TableShape, topic: str, hidden: dict[str, str]) -> tuple[str, str]:
    """Say that rows from before a change of the data policy stay readable, and the remedy."""
    columns = ", ".join(f"{c} ({action})" for c, action in hidden.items())
    return (
        f"{shape.schema}.{shape.table}: the data policy hides {columns} from here on, and earlier rows in the topic stay readable",
        f"stop the connector, delete the topic {topic}, and have it recreated: {reload_command(shape.schema, shape.table)}",
    )


@cache
def _optional_columns(envelope: str) -> frozenset[str]:
    return optional_columns(json.loads(envelope))


def _envelope_id_changed(pin: Pin, found: str) -> Refused:
    return Refused(
        f"the registry has {found} as id {pin.value_schema_id}; it was the envelope of table {pin.schema}.{pin.table}",
        at_stake="rows with this id are in the topic: readers would read them by another schema, or not at all",
        repair=f"restore the registry with its former ids, or start the topic over: {reload_command(pin.schema, pin.table)}",
    )


def _misread_columns(shape: TableShape, columns: list[str]) -> Refused:
    return Refused(
        f"table {shape.schema}.{shape.table}: the type of {', '.join(columns)} has changed; readers of the new schema would misread the values written before",
        at_stake="for example, a decimal's new scale moves the point in every row that is already in the topic; no registry notices",
        repair=f"delete the table's topic and the registry's subject of its values, then have both recreated: {reload_command(shape.schema, shape.table)} (undoing the change is not enough: a row made under it waits to be published)",
    )
