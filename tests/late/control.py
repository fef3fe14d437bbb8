"""The control: a plain transactional producer, as any exactly-once application has one, behind the
proxy.

A transaction has numbered rows and then a marker. After an error the producer is recreated, markers
are read, and what has none is sent again. Each second transaction is aborted.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from chaos.reading import avro, read_all

ROWS: Final = 4


@dataclass(slots=True)
class Told:
    """What the application believes, and what consumers have."""

    committed: list[str] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    visible: Counter[tuple[str, int]] = field(default_factory=Counter)
    """How often a row of a transaction is visible."""
    marked: set[str] = field(default_factory=set)

    @property
    def lost(self) -> list[str]:
        """Committed and marked, and rows of it are missing."""
        return [t for t in self.committed if t in self.marked and any(not self.visible[t, n] for n in range(ROWS))]

    @property
    def doubled(self) -> set[str]:
        return {transaction for (transaction, _), times in self.visible.items() if times > 1}

    @property
    def dirty(self) -> set[str]:
        return {transaction for transaction, _ in self.visible} & set(self.aborted)


class Application:
    """Writes rows and markers, and reads them back."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self._bootstrap, self._name = bootstrap, name
        self.rows, self.marks = f"{name}.rows", f"{name}.marks"
        self.told = Told()
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        for future in admin.create_topics([NewTopic(self.rows, 2), NewTopic(self.marks, 1)]).values():
            future.result(20)
        self._producer = self._new()

    def run(self, until: Callable[[], bool]) -> Told:
        """Transactions one after the other, until told; then read what there is."""
        number = 0
        while not until():
            number += 1
            self._transaction(f"{number}", aborted=number % 2 == 0)
        del self._producer
        for record in read_all(self._bootstrap, avro(""), [self.rows]):
            value = json.loads(record.value)
            self.told.visible[value["tx"], value["n"]] += 1
        self.told.marked = self._marked()
        return self.told

    def _new(self) -> Producer:
        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "transactional.id": f"{self._name}.main",
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        producer.init_transactions(30)
        return producer

    def _transaction(self, name: str, *, aborted: bool) -> None:
        while True:
            try:
                self._try(name, aborted=aborted)
            except KafkaException as error:
                self.told.errors[error.args[0].name()] += 1
                self._producer = self._new()
                if not aborted and name not in self._marked():
                    continue
            (self.told.aborted if aborted else self.told.committed).append(name)
            return

    def _try(self, name: str, *, aborted: bool) -> None:
        producer = self._producer
        producer.begin_transaction()
        for n in range(ROWS):
            producer.produce(self.rows, json.dumps({"tx": name, "n": n}), partition=n % 2)
        producer.flush(20)
        producer.produce(self.marks, name)
        producer.flush(20)
        (producer.abort_transaction if aborted else producer.commit_transaction)(20)

    def _marked(self) -> set[str]:
        time.sleep(0.05)
        return {record.value for record in read_all(self._bootstrap, avro(""), [self.marks])}


def plain(told: Told) -> dict[str, Any]:
    """For a person."""
    return {
        "committed": len(told.committed), "aborted": len(told.aborted), "errors": dict(told.errors), "lost": len(told.lost), "doubled": len(told.doubled), "dirty": len(told.dirty),
    }  # fmt: skip
