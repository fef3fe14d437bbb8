"""What is wrong with a connector's topics, compared with what PostgreSQL did.

Pure; it knows the topics' public contract and nothing of the product.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from chaos.ends import Ended, parted
from chaos.reading import Record
from late.clients import Outcomes


@dataclass(slots=True)
class Verdict:
    """Names of transactions, and sentences."""

    lost: list[str] = field(default_factory=list)
    """Committed, and not wholly visible."""
    doubled: list[str] = field(default_factory=list)
    """A row of it is visible more than once."""
    dirty: list[str] = field(default_factory=list)
    """Visible, and not committed."""
    torn: list[str] = field(default_factory=list)
    """A part of it is visible."""
    split: list[str] = field(default_factory=list)
    """Kafka transactions that showed rows without their commit record, or a commit record without
    its rows.
    """
    ranges: list[str] = field(default_factory=list)
    """Rows in no commit record, in two, or commit records without all their rows."""

    def counts(self) -> dict[str, int]:
        return {
            "lost": len(self.lost), "doubled": len(self.doubled), "dirty": len(self.dirty), "torn": len(self.torn), "split": len(self.split), "ranges": len(self.ranges),
        }  # fmt: skip

    def examples(self) -> dict[str, list[str]]:
        found = {name: getattr(self, name)[:3] for name in self.counts()}
        return {name: some for name, some in found.items() if some}


def judge(
    prefix: str, outcomes: Outcomes, rows: Sequence[Record], commits: Sequence[Record], ends: Iterable[Ended]
) -> Verdict:
    """Compare all that is visible with all that happened."""
    seen: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for record in rows:
        if record.value is not None:
            seen[record.value["after"]["tx"]][record.value["after"]["n"]] += 1
    count = {**outcomes.committed, **outcomes.rolled_back}
    return Verdict(
        lost=[name for name, of in outcomes.committed.items() if len(seen[name]) < of],
        doubled=[name for name, numbers in seen.items() if any(times > 1 for times in numbers.values())],
        dirty=[name for name, numbers in seen.items() if numbers and name not in outcomes.committed],
        torn=[name for name, numbers in seen.items() if 0 < len(numbers) < count.get(name, 0)],
        split=list(parted(prefix, ends, len(commits))),
        ranges=list(_ranges(rows, commits)),
    )


def _ranges(rows: Iterable[Record], commits: Sequence[Record]) -> Iterator[str]:
    left = {record.place for record in rows}
    for commit in commits:
        for each in commit.value["ranges"]:
            places = {(each["topic"], each["partition"], o) for o in range(each["first"], each["last"] + 1)}
            if len(places & left) != each["count"]:
                yield f"commit record {commit.value['sequence']} names {each}, and {len(places & left)} of its rows are there"
            left -= places
    if left:
        yield f"{len(left)} rows are in no commit record: {sorted(left)[:5]}"
    numbers = [commit.value["sequence"] for commit in commits]
    if numbers != list(range(1, len(numbers) + 1)):
        yield f"the numbers of {len(numbers)} commit records are not dense"
