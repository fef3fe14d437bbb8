"""PostgreSQL's regression suite through the connector: `PYTHONPATH=tests python -m suites
[--postgres 18] [--stream-alone] [--ddl-messages] [FILE ...]`.

Takes servers of its own. Prints what became of every table that is not equal; the last line is
JSON, and the exit status is 1 if a table differs that the connector does not name as stale.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from contextlib import ExitStack

from suites.archive import suite
from suites.schedule import Ran
from suites.trial import STREAMS_EARLY, Outcome, Servers, Trial
from twofold.stack import KafkaCluster, PostgresServer, RegistryServer, temporary_folder


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m suites")
    parser.add_argument(
        "files", nargs="*", help="of the schedule; without, all and what the tests of logical replication publish"
    )
    parser.add_argument("--postgres", help="its major version; this machine's own without")
    parser.add_argument(
        "--stream-alone", action="store_true", help="a stale table is only named, and none is loaded at the end"
    )
    parser.add_argument("--ddl-messages", action="store_true", help="with event triggers")
    options = parser.parse_args()
    folder = temporary_folder()
    with ExitStack() as ending:
        postgres = PostgresServer(folder / "postgres", version=options.postgres, settings=STREAMS_EARLY)
        kafka, registry = KafkaCluster(folder / "kafka"), RegistryServer(folder / "registry")
        for server in (postgres, kafka, registry):
            ending.callback(server.stop)
            server.start()
        regression = suite(postgres.version)
        servers = Servers(postgres.dsn(), kafka.bootstrap, registry.url)
        trial = Trial(
            regression, servers, folder, "suites", reloads=not options.stream_alone, told=options.ddl_messages
        )
        ran, streamed = trial.stream(options.files or regression.schedule(), publishers=not options.files)
        outcomes = {"stream": streamed}
        if not options.stream_alone:
            outcomes["load"] = trial.load()
    different = sum(len(outcome.different) for outcome in outcomes.values())
    if not different:
        shutil.rmtree(folder)
    print(json.dumps(report(regression.version, ran, outcomes)))
    return 1 if different else 0


def report(version: str, ran: Ran, outcomes: dict[str, Outcome]) -> dict[str, object]:
    """What was done and seen, in figures; what is not equal is printed by name."""
    found: dict[str, object] = {
        "postgres": version,
        "files": len(ran.files),
        "left_out": ran.left_out,
        "statements": ran.counts.statements,
        "errors": ran.counts.errors.total(),
        "commands_skipped": dict(ran.counts.skipped),
        "seconds": round(ran.seconds),
    }
    for name, outcome in outcomes.items():
        for verdict in outcome.verdicts:
            if verdict.state != "equal":
                print(f"{name}: {verdict.table}: {verdict.state}: {verdict.words}")
        found[name] = {
            **outcome.states(),
            "rows": sum(verdict.rows for verdict in outcome.verdicts),
            "records": outcome.records,
            "refusals": dict(outcome.refusals),
            "seconds": round(outcome.seconds),
        }
    return found


if __name__ == "__main__":
    sys.exit(main())
