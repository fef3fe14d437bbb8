"""The checkpoint that a job has by default is its mirror's own, and decides nothing."""

from __future__ import annotations

import pytest
from confluent_kafka import TopicPartition

from fixtures.spark import Lake, new_lake
from helpers.spark.writer import Writer, table
from twofold_spark.job import cli
from twofold_spark.sinks.sink_choice import SinkChoice

pytestmark = pytest.mark.usefixtures("session_of_the_tests")


def _mirror(lake: Lake, sink: str = "iceberg", *more: str) -> int:
    """As on the command line, to the end of what there is."""
    lake.writer.visible()
    lake.choice = SinkChoice.parse(sink)
    return cli.main(
        [
            "mirror", "--bootstrap", lake.writer.bootstrap, "--registry", lake.writer.registry, "--prefix", lake.prefix,
            "--warehouse", str(lake.warehouse), "--catalog", lake.catalog, "--trigger", "available-now", "--sink", sink, *more,
        ]
    )  # fmt: skip


def _write(lake: Lake, *ids: int) -> None:
    lake.writer.table(table("t", {"id": "int8", "v": "text"}))
    for i in ids:
        with lake.writer.commit() as tx:
            tx.upsert("t", {"id": i, "v": f"v{i}"})


def _names(lake: Lake) -> set[str]:
    return {folder.name for folder in (lake.warehouse / "checkpoints").iterdir()}


@pytest.mark.slow
def test_a_second_sink_of_a_warehouse_begins_where_kafka_does(lake: Lake, database: str) -> None:
    _write(lake, 1, 2)
    assert _mirror(lake) == 0
    assert _names(lake) == {"mirror"}, "where it always was"
    _write(lake, 3)
    folders = [f"delta={lake.warehouse / name}" for name in ("one", "other")]
    for sink in (*folders, f"jdbc={database}", "iceberg"):
        assert _mirror(lake, sink) == 0, sink
        lake.assert_equal()
    assert len(_names(lake)) == 4
    _write(lake, 4)
    assert _mirror(lake, folders[0]) == 0
    lake.assert_equal()
    assert len(_names(lake)) == 4, "it goes on at its own"


@pytest.mark.slow
def test_two_prefixes_that_share_a_warehouse_have_each_their_own(lake: Lake, prefix: str) -> None:
    other = new_lake(lake.spark, Writer(lake.writer.bootstrap, lake.writer.registry, f"{prefix}b"), lake.warehouse)
    for each, ids in ((lake, (1, 2)), (other, (3,))):
        _write(each, *ids)
        assert _mirror(each, f"delta={each.warehouse / each.prefix}") == 0
        each.assert_equal()
    assert len(_names(lake)) == 2


def test_with_a_checkpoint_of_another_prefix_the_tables_are_right(lake: Lake, prefix: str) -> None:
    other = new_lake(lake.spark, Writer(lake.writer.bootstrap, lake.writer.registry, f"{prefix}b"), lake.warehouse)
    _write(lake, 1, 2)
    _write(other, 3)
    assert _mirror(lake) == 0
    assert (
        _mirror(
            other, f"delta={other.warehouse / 'other'}", "--checkpoint", str(lake.warehouse / "checkpoints" / "mirror")
        )
        == 0
    )
    other.assert_equal()


def test_tables_that_are_behind_their_checkpoint_are_brought_up_from_kafka(lake: Lake) -> None:
    """Such as tables that were restored from a backup; here two mirrors share a checkpoint."""
    shared = str(lake.warehouse / "checkpoints" / "mirror")
    other = f"delta={lake.warehouse / 'other'}"
    _write(lake, 1, 2)
    assert _mirror(lake) == 0
    assert _mirror(lake, other, "--checkpoint", shared) == 0, "nothing is new to the checkpoint"
    lake.assert_equal()
    _write(lake, 3)
    assert _mirror(lake) == 0
    _write(lake, 4)
    assert _mirror(lake, other, "--checkpoint", shared) == 0, "the checkpoint has the third"
    lake.assert_equal()


def test_what_retention_took_behind_the_tables_is_refused(lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    _write(lake, 1, 2)
    assert _mirror(lake) == 0
    _write(lake, 3, 4, 5)
    commits = TopicPartition(f"{lake.prefix}.commits", 0, 8)  # a record and its marker for each: the fifth is left
    lake.writer._admin.delete_records([commits])[commits].result(30)
    assert _mirror(lake) == 5
    assert "commit record 3 is missing: the next one that Kafka has is 5" in capsys.readouterr().err
    commits = TopicPartition(f"{lake.prefix}.commits", 0, 10)
    lake.writer._admin.delete_records([commits])[commits].result(30)
    assert _mirror(lake, f"delta={lake.warehouse / 'new'}") == 5
    assert "has no commit record of" in capsys.readouterr().err


@pytest.mark.core
def test_a_checkpoint_says_whose_it_is_and_no_secret() -> None:
    said = {
        SinkChoice.parse(sink).default_checkpoint("s3a://lake/w", "shop").removeprefix("s3a://lake/w/checkpoints/")
        for sink in ("jdbc=host=db dbname=m user=me password=one", "jdbc=host=db dbname=m user=you password=two")
    }
    assert [name.rpartition("-")[0] for name in said] == ["mirror-jdbc-shop"], "a new password is no new mirror"
