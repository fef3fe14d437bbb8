"""What a row is known by in the mirror, and the names of its columns: keys that change with a
reload, names that are the mirror's own."""

from __future__ import annotations

from typing import Any
from urllib.request import urlopen

import pytest

from fixtures.spark import KEPT_SHORT, Lake
from helpers.security.guards import Handler, served
from helpers.spark.writer import table
from twofold_spark.errors import TableRefused


@pytest.mark.parametrize("kept", KEPT_SHORT, indirect=True)
def test_columns_of_a_table_with_a_key_may_have_any_name(kept: Lake) -> None:
    w = kept.writer
    columns = {"lsn": "int8", "_key": "text", "_op": "text", "_unchanged": "text", "_copies": "int8", "body": "text"}
    t = w.table(table("t", columns, key=("lsn",)))

    def row(i: int) -> dict[str, Any]:
        return {"lsn": i, "_key": f"k{i}", "_op": "d", "_unchanged": "body", "_copies": 3, "body": f"b{i}"}

    with w.commit() as tx:
        for i in range(4):
            tx.upsert(t, row(i))
    kept.mirror()
    kept.assert_equal()
    with w.commit() as tx:
        tx.upsert(t, {**row(0), "_key": "other"}, unchanged=("body",))
        tx.rekey(t, 1, row(10), unchanged=("body",))
        tx.delete(t, 2)
    kept.mirror()
    kept.assert_equal()


def test_a_table_that_would_have_a_column_twice_is_refused_alone(lake: Lake) -> None:
    """One is the source's and one the mirror's own, or they differ in case."""
    w = lake.writer
    keyless = w.table(table("keyless", {"a": "int4", "_copies": "int4"}, key=()), partitions=1)
    dated = w.table(table("dated", {"day": "date", "_key_day": "text"}, key=("day",)), partitions=1)
    cased = w.table(table("cased", {"id": "int8", "a": "int4", "A": "int4"}), partitions=1)
    fine = w.table(table("fine", {"id": "int8", "v": "text"}), partitions=1)
    with w.commit() as tx:
        tx.keyless(keyless, "c", after={"a": 1, "_copies": 1})
        tx._record(dated, "c", {"day": "infinity"}, None, {"day": None, "_key_day": "mine"}, w.lsn())
        tx.upsert(cased, {"id": 1, "a": 1, "A": 2})
        tx.upsert(fine, {"id": 1, "v": "v"})
    with pytest.raises(TableRefused, match=r"twice in the mirror's table.*\n.*\n.*`twofold backfill start`"):
        lake.mirror()
    said: list[str] = []
    lake.mirror(on_table_error="go-on", warn=said.append)
    assert lake.cut().cut.stopped == ("public.cased", "public.dated", "public.keyless")
    assert len([line for line in said if "twice in the mirror's table" in line]) == 3
    assert lake.rows(fine) == w.model[fine]


@pytest.mark.parametrize("kept", KEPT_SHORT, indirect=True)
def test_a_key_that_has_changed_is_the_mirrors_with_the_reload(kept: Lake) -> None:
    w = kept.writer
    columns = {"id": "int8", "region": "text", "v": "text"}
    t, other = (w.table(table(n, columns), partitions=1) for n in ("t", "other"))
    one, two = ({"id": i, "region": "a", "v": f"v{i}"} for i in (1, 2))
    for name in (t, other):
        with w.commit() as tx:
            tx.upsert(name, one)
            tx.upsert(name, two)
    kept.mirror()

    # The mirror is behind: the registry has the new key, and what it reads was written before.
    with w.commit() as tx:
        tx.upsert(t, {**one, "v": "before"})
        tx.upsert(other, {**one, "v": "before"})
    w.take_any(f"{w.topics[t].name}-value")  # a column of the key is never null
    w.delete_subject(f"{w.topics[t].name}-key")
    w.table(table("t", columns, key=("id", "region")))
    w.model[t] = {}
    with pytest.raises(TableRefused, match=r"the key of public\.t is .*\n.*\n.*`twofold backfill start public\.t`"):
        kept.mirror()
    rows = [one, {**one, "region": "b"}, two]
    w.reload(t, rows)
    kept.mirror(warn=lambda _: None)
    kept.assert_equal()
    assert kept.cut().cut.stopped == ()
    assert kept.reader.read_key(kept.prefix, "public.t") == ("id", "region")
    with w.commit() as tx:
        tx.delete(t, (1, "b"))
        tx.upsert(t, {**one, "region": "c"})
    kept.mirror()
    kept.assert_equal()

    w.table(table("t", {"region": "text", "v": "text"}, key=("region",)))
    w.model[t] = {}
    w.reload(t, [{"region": r, "v": r} for r in "ab"])
    kept.mirror(warn=lambda _: None)
    assert {r: row["v"] for r, row in kept.rows(t).items()} == {"a": "a", "b": "b"}

    w.table(table("t", {"region": "text", "v": "text"}, key=()))
    w.delete_subject(f"{w.topics[t].name}-key")
    w.model[t] = {}
    with w.commit(kind="reload") as tx:
        tx.truncate(t)
        for _ in range(2):
            tx.keyless(t, "r", after={"region": "a", "v": "a"})
    kept.mirror(warn=lambda _: None)
    assert [(row["region"], row["_copies"]) for row in kept.table(t).collect()] == [("a", 2)]
    assert kept.reader.read_key(kept.prefix, "public.t") == ()


def test_rows_whose_key_the_registry_has_not_are_refused(lake: Lake) -> None:
    """The key's subject was deleted, or a replica of the registry lags behind."""
    w = lake.writer
    shape = table("t", {"id": "int8", "v": "text"})
    t = w.table(shape, partitions=1)
    for value in "ab":
        with w.commit() as tx:
            tx.upsert(t, {"id": 1, "v": value})
    w.delete_subject(f"{w.topics[t].name}-key")
    with pytest.raises(TableRefused, match=r"has rows with a key, .*-key\n.*\n.*`twofold backfill start public\.t`"):
        lake.mirror()
    w.table(shape)
    lake.mirror()
    lake.assert_equal()


class _Lagging(Handler):
    """A replica of the registry that learns versions after the first when an id was asked for
    thrice.
    """

    url = ""
    asked = 0

    def do_GET(self) -> None:
        is_id = self.path.startswith("/schemas/ids/")
        _Lagging.asked += is_id
        if is_id and _Lagging.asked < 3:
            self.answer(b'{"error_code": 40403, "message": "Schema not found"}', 404)
            return
        with urlopen(f"{self.url}{self.path}", timeout=10) as answer:
            body = answer.read()
        if self.path.endswith("-value/versions") and _Lagging.asked < 3:
            body = b"[1]"
        self.answer(body)


@pytest.mark.parametrize("job", ["mirror", "changelog"])
def test_a_schema_that_a_replica_of_the_registry_lacks_is_asked_for_again(
    lake: Lake, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows were quarantined as somebody else's, and the table stopped."""
    w = lake.writer
    columns = {"id": "int8", "v": "text"}
    t = w.table(table("t", columns), partitions=1)
    with w.commit() as tx:
        tx.upsert(t, {"id": 1, "v": "a"})
    w.table(table("t", {**columns, "w": "text"}))
    with w.commit() as tx:
        tx.upsert(t, {"id": 2, "v": "b", "w": "c"})
    monkeypatch.setattr(_Lagging, "url", w.registry)
    monkeypatch.setattr(_Lagging, "asked", 0)
    with served(_Lagging) as port:
        monkeypatch.setattr(w, "registry", f"http://127.0.0.1:{port}")
        if job == "mirror":
            lake.mirror()
            assert {i: row["w"] for i, row in lake.rows(t).items()} == {1: None, 2: "c"}
        else:
            lake.changelog()
            rows = lake.spark.table(f"{lake.catalog}.public_changelog.t").collect()
            assert {row["after"]["w"] for row in rows} == {None, "c"}
    assert _Lagging.asked == 3


def test_a_table_whose_subject_is_not_in_the_registry_is_stopped_alone(lake: Lake) -> None:
    w = lake.writer
    shape = table("t", {"id": "int8", "v": "text"})
    t, other = (w.table(s, partitions=1) for s in (shape, table("other", {"id": "int8", "v": "text"})))

    def both(i: int) -> None:
        with w.commit() as tx:
            for name in (t, other):
                tx.upsert(name, {"id": i, "v": "v"})

    both(1)
    w.delete_subject(f"{w.topics[t].name}-value")
    with pytest.raises(TableRefused, match=r"-value.*\n.*\n.*`twofold backfill start public\.t`"):
        lake.mirror()
    said: list[str] = []
    lake.mirror(on_table_error="go-on", warn=said.append)
    both(2)
    lake.mirror(on_table_error="go-on", warn=said.append)
    assert lake.cut().cut.stopped == ("public.t",)
    assert lake.rows(other) == w.model[other]
    w.table(shape)
    w.reload(t)
    lake.mirror(warn=said.append)
    assert lake.cut().cut.stopped == ()
    lake.assert_equal()
