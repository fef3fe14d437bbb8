"""Kafka forgets a transactional id that nobody has used for `transactional.id.expiration.ms`, seven
days by default: those of the pool, where the source prepares nothing for so long, and all of them
where it writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from fixtures.connector import Maker, wait_until
from helpers.reading import read_to_end
from twofold.stack import KafkaCluster

EXPIRES = {
    "transactional.id.expiration.ms": "3000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "500",
}


def list_ids(bootstrap: str) -> dict[str, bool]:
    """The ids in the coordinators' own topic, and whether each is there no more."""
    records = read_to_end(bootstrap, ["__transaction_state"])
    return {(each.key() or b"")[4:].decode(): each.value() is None for each in records}


def are_gone(bootstrap: str, beginning: str) -> bool:
    found = [is_gone for name, is_gone in list_ids(bootstrap).items() if name.startswith(beginning)]
    return bool(found) and all(found)


def test_a_connector_goes_on_when_kafka_has_forgotten_its_transactional_ids(
    connector: Maker, own_kafka: Callable[..., KafkaCluster]
) -> None:
    cluster = own_kafka(settings=EXPIRES)
    here = connector(kafka_server=cluster, prepared={"pool": 2})
    run = here.start()
    for number in (1, 2):
        here.prepare(f"week {number}", f"INSERT INTO account VALUES ({number}, 1, 'x')")
        here.caught_up()
        here.sql(f"COMMIT PREPARED 'week {number}'")
        here.check()
        wait_until(lambda: are_gone(cluster.bootstrap, f"{here.prefix}.prepared."), 60, "Kafka has forgotten the pool")
    # Which one is used first, the main producer's or one of the pool, is a matter of milliseconds.
    assert "INVALID_PRODUCER_ID_MAPPING" in run.said(), "no transaction began with an id that was gone"
