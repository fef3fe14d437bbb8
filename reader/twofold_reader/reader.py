"""Reads a prefix's topics as whole source transactions, in commit order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from twofold_common.errors import SetupError
from twofold_reader.commit_reader import CommitReader
from twofold_reader.schemas import schemas_at
from twofold_reader.whole_transactions import Transaction

if TYPE_CHECKING:
    from twofold_reader.arrow import ArrowBatch


class Reader:
    """A reader of one prefix, used by one thread.

    It joins no consumer group and stores nothing: the bookmark of what was read is its user's.
    """

    def __init__(
        self,
        prefix: str,
        kafka: Mapping[str, Any],
        registry: str | Callable[[int], str],
        *,
        tables: Sequence[str] | None = None,
    ) -> None:
        """Read these tables, as `schema.table`; None: all of the prefix.

        `kafka` has confluent_kafka's options, such as `bootstrap.servers`. `registry` is the URL of
        the schema registry, or a function that returns a schema by its id.
        """
        schema_of = schemas_at(registry) if isinstance(registry, str) else registry
        self._commits = CommitReader(prefix, kafka, schema_of, tables)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the connections to Kafka."""
        self._commits.close()

    def transactions(self, start: str, *, follow: bool = True) -> Iterator[Transaction]:
        """Return whole transactions in commit order, as they become visible.

        `start` is 'beginning' (the first transaction that Kafka has whole), 'newest' (what is
        committed from now on), a position such as '0/1A2B3C' (what is committed there or later), or
        a bookmark. Without `follow` it ends where nothing more is visible.
        """
        self._commits.begin(start)
        return (each for each in self._read_on(follow=follow) if each is not None)

    def as_arrow(self, start: str, *, follow: bool = True, rows: int = 10_000) -> Iterator[ArrowBatch]:
        """Return the same transactions in batches of Arrow, each of so many changes at most.

        A batch ends when nothing more is visible at present. Needs `twofold-reader[arrow]`.
        """
        try:
            from twofold_reader.arrow import split_into_batches  # noqa: PLC0415  (pyarrow is not always there)
        except ImportError as error:
            raise SetupError("pyarrow is not installed; remedy: pip install 'twofold-reader[arrow]'") from error
        self._commits.begin(start)
        return split_into_batches(self._read_on(follow=follow, as_avro=True), rows)

    def _read_on(self, *, follow: bool, as_avro: bool = False) -> Iterator[Transaction | None]:
        """Yield transactions; None: no further one is visible at present."""
        commits = self._commits
        while True:
            if commits.pending:
                yield from commits.take_transactions(as_avro=as_avro)
            elif not commits.read_more():
                if not follow and commits.is_at_end:
                    return
                yield None
