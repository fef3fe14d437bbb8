"""What metrics and status page cost a connector under full load, in its own CPU: python
benchmarks/watching.py [rows]

A connector drains a backlog in this process while another scrapes /metrics every second and asks
for the page's status every two, both more often than anybody would. CPU time is taken by thread: of
the calls into the activity where they are made, of the sampler, of every request. What it is a
share of is all of the process's CPU time. (Wall time says nothing on a machine that has other
things to do.)
"""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import psycopg

from twofold.config import load
from twofold.run.initialisation import initialise
from twofold.run.supervisor import supervise
from twofold.stack import LocalStack, temporary_folder
from twofold.watch import server as status_server
from twofold.watch.activity import Activity
from twofold.watch.mirror_view import MirrorView
from twofold.watch.sampler import Sampler
from twofold.watch.watching import serve_status

SCRAPER = """
import sys, time, urllib.request
base, turn = sys.argv[1], 0
while True:
    urllib.request.urlopen(base + "metrics").read()
    if turn % 2 == 0:
        urllib.request.urlopen(base + "api/status?after=0").read()
    turn += 1
    time.sleep(1)
"""
TOLD = ("recovering", "recovered", "tables_known", "published", "turned", "stepped", "loading")
spent: defaultdict[str, float] = defaultdict(float)
calls: Counter[str] = Counter()


def timed(what: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def measured(*arguments: Any, **named: Any) -> Any:
        began = time.thread_time()
        try:
            return function(*arguments, **named)
        finally:
            spent[what] += time.thread_time() - began
            calls[what] += 1

    return measured


def instrument() -> None:
    for name in TOLD:
        setattr(Activity, name, timed("activity", getattr(Activity, name)))
    Sampler.sample = timed("sampler", Sampler.sample)  # type: ignore[method-assign]
    http = status_server._Http
    http.process_request_thread = timed("requests", http.process_request_thread)  # type: ignore[method-assign]
    http.process_request = timed("accepting", http.process_request)  # type: ignore[method-assign]


def backlog(dsn: str, rows: int) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        block = "FOR n IN {}..{} LOOP INSERT INTO t SELECT n * 10 + g, now(), n, 1.5, repeat('x', 40), true FROM generate_series(0, 9) g; COMMIT; END LOOP"
        connection.execute(f"DO $$ BEGIN {block.format(1, rows // 10)}; END $$")


def main(rows: int) -> None:
    instrument()
    folder = temporary_folder()
    with LocalStack(folder / "stack") as stack:
        file = folder / "bank.toml"
        file.write_text(
            f'name = "bank"\n[source]\ndsn = "{stack.postgres.dsn()}"\ntables = ["public.*"]\n'
            f'[kafka]\nbootstrap = "{stack.kafka.bootstrap}"\nreplication = 1\nmin_insync_replicas = 1\n'
            f'[registry]\nurl = "{stack.registry.url}"\n[status]\nlisten = "127.0.0.1:17788"\n'
        )
        config = load(file)
        with psycopg.connect(stack.postgres.dsn(), autocommit=True) as connection:
            connection.execute(
                "CREATE TABLE t (id bigint PRIMARY KEY, at timestamptz, n int, v numeric(10, 2), words text, yes boolean)"
            )
        initialise(config, print)
        backlog(stack.postgres.dsn(), rows)
        stop = threading.Event()
        scraper = subprocess.Popen(
            [sys.executable, "-c", SCRAPER, "http://127.0.0.1:17788/"], stderr=subprocess.DEVNULL
        )
        began_cpu, began = time.process_time(), time.monotonic()
        with serve_status(config) as activity:
            run = threading.Thread(target=supervise, args=(config, stop, activity))
            run.start()
            while activity.view().totals.rows < rows:
                time.sleep(0.5)
                if scraper.poll() is not None:  # it began before the page did
                    scraper = subprocess.Popen([sys.executable, "-c", SCRAPER, "http://127.0.0.1:17788/"], stderr=subprocess.DEVNULL)  # fmt: skip
            whole, wall = time.process_time() - began_cpu, time.monotonic() - began
            scraper.kill()
            scraper.wait()
            stop.set()
            run.join()
        view = MirrorView(config)
        view.read()
        before = time.process_time()
        for _ in range(20):
            view.read()
        a_look = (time.process_time() - before) / 20
    shutil.rmtree(folder, ignore_errors=True)
    spent["mirror's place"] = a_look * wall / 5
    print(json.dumps({"rows": rows, "wall_s": round(wall, 1), "cpu_s": round(whole, 2), "calls": dict(calls)}))
    for what, cpu_s in sorted(spent.items(), key=lambda each: -each[1]):
        print(f"{what:<16} {cpu_s:8.3f} s  {100 * cpu_s / whole:6.2f} %")
    print(f"{'all of it':<16} {sum(spent.values()):8.3f} s  {100 * sum(spent.values()) / whole:6.2f} %")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300_000)
