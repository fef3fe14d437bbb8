"""What `status` says while Kafka is away: PostgreSQL's half at once, and soon that the other half
is not known.
"""

from __future__ import annotations

import json
import subprocess
import time

from fixtures.connector import Maker

AWAY = (
    "Kafka at 127.0.0.1:9 does not answer: Connect to ipv4#127.0.0.1:9 failed: Connection refused;"
    " remedy: start Kafka, or correct kafka.bootstrap, and security.protocol in kafka.options"
)
SOON_S = 20.0
"""Three seconds, and what a slow machine adds."""


def test_postgresqls_half_comes_at_once_and_the_rest_soon(connector: Maker) -> None:
    here = connector()
    here.prepare("waits", "INSERT INTO account VALUES (1, 0, 'x')")
    here.configure({"kafka": {"bootstrap": "127.0.0.1:9"}})
    with subprocess.Popen(here.command("status"), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        began = time.monotonic()
        rest = process.stdout.read()
        took_s = time.monotonic() - began
    assert first == f"connector   {here.prefix}, not running, or between two tries: nobody holds the slot\n"
    assert took_s < SOON_S
    assert process.returncode == 4
    assert f"slot {here.prefix}, WAL reserved" in rest
    assert f"in Kafka    not known: {AWAY}" in rest
    assert "  waits  xid" in rest
    assert ", not known, owner" in rest


def test_as_json(connector: Maker) -> None:
    here = connector()
    here.configure({"kafka": {"bootstrap": "127.0.0.1:9"}})
    done = here.twofold("status", "--json")
    assert done.returncode == 4
    said = json.loads(done.stdout)
    assert said["source_lsn"] > 0
    assert (said["initialised"], said["applied_lsn"]) == (None, None)
    assert said["kafka_error"] == AWAY
