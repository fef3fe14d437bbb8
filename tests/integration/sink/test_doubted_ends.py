"""An end that may have been sent twice is the last thing that happens under its producer's
epoch.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from integration.sink.sink_ground import Ground, commit, eventually, progress
from twofold.errors import QuickAgain, RunEnded, UncertainEnd
from twofold.kafka import late_ends
from twofold.kafka.producer import TransactionalProducer
from twofold.kafka.publisher import TransactionRecords
from twofold.stack import KafkaCluster, temporary_folder


@contextmanager
def frozen(cluster: KafkaCluster, seconds: float) -> Iterator[None]:
    """The only broker answers nobody for so long, from now on."""
    pid = cluster.nodes[0].pid
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: all(_state(thread) == "T" for thread in Path(f"/proc/{pid}/task").iterdir()))
    thaw = threading.Timer(seconds, os.kill, (pid, signal.SIGCONT))
    thaw.start()
    try:
        yield
    finally:
        thaw.join()


def _state(thread: Path) -> str:
    return (thread / "stat").read_text().rpartition(")")[2].split()[0]


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaCluster]:
    """For tests that freeze it, and thaw it before they end."""
    folder = temporary_folder()
    made = KafkaCluster(folder / "kafka")
    with ExitStack() as ending:
        ending.callback(shutil.rmtree, folder, ignore_errors=True)
        ending.callback(made.stop)
        made.start()
        yield made


@pytest.mark.parametrize(
    "end", [pytest.param(TransactionalProducer.commit, marks=pytest.mark.core), TransactionalProducer.abort]
)
def test_a_producer_whose_end_took_long_is_not_used_again(
    make_ground: Callable[..., Ground],
    cluster: KafkaCluster,
    prefix: str,
    end: Callable[[TransactionalProducer], None],
) -> None:
    ground = make_ground(cluster.bootstrap, prefix)
    publisher = ground.take_over().publisher
    publisher.produce(ground.rows("one"))
    producer = publisher._main
    producer.flush()
    with frozen(cluster, 1.5), pytest.raises(UncertainEnd, match="a second one may arrive late"):
        end(producer)
    with pytest.raises(RunEnded, match="destroyed"):
        producer.begin()
    visible = ["one"] if end is TransactionalProducer.commit else []
    eventually(lambda: ground.committed() == visible)
    again = ground.take_over().publisher
    again.produce(ground.rows("two"))
    again.commit_main(TransactionRecords(commit(1), progress(1)))
    eventually(lambda: ground.committed() == sorted([*visible, "two"]))
    again.close()

    ground.options["retry_factor"] = 4  # as after the second such end
    patient = ground.take_over().publisher
    patient.produce(ground.rows("three"))
    patient._main.flush()
    with frozen(cluster, 1.5):
        patient._main.commit()
    patient.produce(ground.rows("four"))
    patient.commit_main(TransactionRecords(commit(2), progress(2)))
    eventually(lambda: ground.committed() == sorted([*visible, "two", "three", "four"]))


@pytest.mark.core
def test_recovery_goes_on_where_its_own_end_is_in_doubt_and_the_next_end_is_too(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where every end takes long each run takes one step."""
    monkeypatch.setattr(late_ends, "SENT_ONCE_S", 0.0)
    for sequence in (1, 2):
        fencing = ground.take_over()
        assert (fencing.recovered.progress.sequence if fencing.recovered.progress else 0) == sequence - 1
        publisher = fencing.publisher
        publisher.produce(ground.rows(str(sequence)))
        with pytest.raises(UncertainEnd):
            publisher.commit_main(TransactionRecords(commit(sequence), progress(sequence)))
        with pytest.raises(RunEnded, match="destroyed"):
            publisher._mains[0].begin()
    eventually(lambda: ground.committed() == ["1", "2"])


@pytest.mark.core
def test_a_patient_run_ends_once_when_every_end_is_quick(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last transaction is committed."""
    ground.options["retry_factor"] = 4
    publisher = ground.take_over().publisher
    publisher.produce(ground.rows("one"))
    publisher.commit_main(TransactionRecords(commit(1), progress(1)))
    monkeypatch.setattr(late_ends, "QUICK_S", 0.0)
    publisher.produce(ground.rows("two"))
    with pytest.raises(QuickAgain):
        publisher.commit_main(TransactionRecords(commit(2), progress(2)))
    eventually(lambda: ground.committed() == ["one", "two"])
    ground.options["retry_factor"] = 1
    publisher = ground.take_over().publisher
    publisher.produce(ground.rows("three"))
    publisher.commit_main(TransactionRecords(commit(3), progress(3)))
