"""Speed of the mirror, beside a plain foreachBatch MERGE of the same topic.

    make bench-mirror [ARGS='CHANGES [KEYS [PARTS]]']

PARTS are some of throughput,small,latency,growth,large (default: all except the last two).

The benchmark starts a broker and a registry, and one Spark session as a job makes it (`local[2]`,
512 MB). The topic holds KEYS inserts (100 thousand), then CHANGES changes of them (a million): 90 %
updates, 5 % deletes, 5 % inserts, in Kafka transactions of 5,000. Both jobs start from the table
with the inserts, and both tables are compared with what was written. The JVM's CPU time is given
too, because other work on the machine changes it less than the time.

- throughput: the changes into Iceberg, in rounds of one process: each writes as many changes, and
  the jobs take turns to be the first. A JVM of a minute compiles more than one of five, and the job
  that runs first compiles for the others too. The changelog reads the same topic.
- small: batches of a thousand changes over six tables, at the start of a process (the second batch
  to the 15th), a minute later (the 31st to the 45th), and in one that runs (the last 45 of 180).
- latency: from Kafka's commit to the cut, with a trigger of a second.
- growth: a thousand random keys into tables of ten thousand to ten million rows, which Spark fills.
- large: throughput into a table with a hundred rows for each key, so ten million. The plain job
  runs twice: into a table as Iceberg makes it, and into one with merge-on-read.

The mirror is timed without its maintenance, because the plain job has none. The last line is one
JSON object.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f
from pyspark.sql.avro.functions import from_avro

from helpers.spark.ground import jobs_ground
from helpers.spark.writer import Open, Writer, table
from twofold_spark.changelog.changelog_job import Changelog
from twofold_spark.mirror.batching import AppliedBatch, MirrorSettings
from twofold_spark.mirror.mirror_job import Mirror
from twofold_spark.sinks.iceberg_place import IcebergPlace
from twofold_spark.sources.kafka_client import Kafka
from twofold_spark.sources.registry import Registry
from twofold_spark.streaming import StreamingJob, Trigger

ORDERS = table(
    "orders",
    {
        "id": "int8",
        "quantity": "int4",
        "customer": "text",
        "price": "float8",
        "paid": "bool",
        "details": "jsonb",
        "note": "text",
        "version": "int8",
    },
)
SPARK_DEFAULTS = {"spark.sql.shuffle.partitions": "200"}
"""Settings of a job that nobody has tuned."""
SESSION_SETTINGS: dict[str, str] = {}
MERGE_ON_READ = {
    "format-version": "2",
    **{f"write.{what}.mode": "merge-on-read" for what in ("merge", "update", "delete")},
}
ROUNDS = 4
SPREAD = 100
"""In the large table one of so many rows has a key that changes."""
TRANSACTION = 5_000
SMALL_TABLES = 6
SMALL_ROUNDS = 180
LATENCY_SECONDS = 30


GROWTH = (10_000, 100_000, 1_000_000, 10_000_000)
PARTS = "throughput,small,latency"


def main(changes: int, keys: int, parts: str) -> None:
    with jobs_ground() as ground:
        bench = Bench(ground.spark, Writer(ground.bootstrap, ground.registry, "bench"), ground.folder)
        figures: dict[str, float] = {}
        for part in parts.split(","):
            measured = getattr(bench, part)
            figures |= measured(changes, keys) if part in {"throughput", "large"} else measured()
        print(json.dumps(figures | {"driver_rss_mb": bench.memory()}))


class Bench:
    def __init__(self, spark: SparkSession, writer: Writer, folder: Path) -> None:
        self.spark = spark
        self.writer = writer
        self.folder = folder
        self.applied: list[tuple[AppliedBatch, float]] = []

    def throughput(self, changes: int, keys: int) -> dict[str, float]:
        with timed(f"written: {keys} inserts"):
            self.writer.table(ORDERS)
            write(self.writer, keys, lambda tx, n: tx.upsert("orders", order(n, 0)))
        with timed("mirror: the inserts, cold"):
            self.mirror()
        with timed("plain: the inserts, cold"):
            self.plain("plain", SPARK_DEFAULTS)
            self.plain("tuned", SESSION_SETTINGS)
        rng = random.Random(1)
        rounds = [self.round(changes, keys, rng, number) for number in range(ROUNDS)]
        read = keys + ROUNDS * changes
        with timed("changelog: inserts and changes"):
            changelog = self.changelog()
        with timed("reading and decoding only: inserts and changes"):
            alone_s = self.read_alone()
        self.check("public", "plain", "tuned")
        return {
            **rounds[0],
            **{f"later_{name}": round(median(r[name] for r in rounds[1:]), 1) for name in rounds[0]},
            "changelog_rows_per_s": round(read / changelog),
            "read_and_decoded_alone_per_s": round(read / alone_s),
        }

    def round(self, changes: int, keys: int, rng: random.Random, number: int) -> dict[str, float]:
        """Write changes, and let each job apply them."""
        with timed(f"written: {changes} changes"):
            write(self.writer, changes, lambda tx, n: change(tx, rng, keys, number * changes + n, "orders"))
        print(f"waiting: load {Path('/proc/loadavg').read_text().split()[0]}")
        jobs: list[tuple[str, Callable[[], tuple[float, float]]]] = [
            ("mirror", self.mirror),
            ("plain", lambda: self.plain("plain", SPARK_DEFAULTS)[:2]),
            ("plain_as_ours_is_set", lambda: self.plain("tuned", SESSION_SETTINGS)[:2]),
        ]
        turn = number % len(jobs)
        figures: dict[str, float] = {}
        for name, job in jobs[turn:] + jobs[:turn]:
            with timed(f"{name}: the changes"):
                seconds, cpu = job()
            figures[f"{name}_changes_per_s"] = round(changes / seconds)
            figures[f"{name}_cpu_us"] = round(cpu / changes * 1e6, 1)
        return figures

    def large(self, changes: int, keys: int) -> dict[str, float]:
        """Measure throughput into a table in which few rows have a key that changes."""
        name = self.writer.table(replace(ORDERS, table="large"))
        write(self.writer, keys, lambda tx, n: tx.upsert(name, order(n * SPREAD, 0)))
        self.mirror()
        self.plain("plain", SPARK_DEFAULTS, name)
        self.plain("tuned", SESSION_SETTINGS, name, MERGE_ON_READ)
        like = self.spark.table(f"twofold.public.{name}")
        ids = self.spark.range(keys * SPREAD).where(f"id % {SPREAD} <> 0")
        rows = ids.join(like.drop("id").limit(1)).select(*like.columns)
        for namespace in ("public", "plain", "tuned"):
            rows.writeTo(f"twofold.{namespace}.{name}").append()
        rng = random.Random(3)
        write(self.writer, changes, lambda tx, n: change(tx, rng, keys, n, name, SPREAD))
        with timed("mirror: the changes, into the large table"):
            mirror, _ = self.mirror()
        with timed("plain, with the defaults of Spark and Iceberg: the same"):
            plain, _, _ = self.plain("plain", SPARK_DEFAULTS, name)
        with timed("plain, with the settings of our session and merge-on-read: the same"):
            tuned, _, _ = self.plain("tuned", SESSION_SETTINGS, name, MERGE_ON_READ)
        self.check("public", "plain", "tuned", orders=name, where=f"id % {SPREAD} = 0")
        return {
            "large_mirror_changes_per_s": round(changes / mirror),
            "large_plain_changes_per_s": round(changes / plain),
            "large_plain_merge_on_read_changes_per_s": round(changes / tuned),
        }

    def small(self) -> dict[str, float]:
        """Measure batches of a thousand changes over six tables, in a running job."""
        names = self.small_tables("small", SMALL_TABLES)

        def write_changes() -> None:
            for number in range(SMALL_ROUNDS):
                with self.writer.commit() as tx:
                    for n in range(1000):
                        tx.upsert(names[n % len(names)], {"id": n, "v": f"{number}"})
                self.await_applied()

        self.run_beside("interval=100ms", write_changes)
        seconds = [applied.seconds for applied, _ in self.applied]
        print("small batches, s, one after the other:", " ".join(f"{s:.2f}" for s in seconds))
        return {
            "six_tables_from_2_s": round(median(seconds[1:15]), 2),
            "six_tables_from_31_s": round(median(seconds[30:45]), 2),
            "six_tables_running_s": round(median(seconds[-45:]), 2),
        }

    def small_tables(self, name: str, count: int) -> list[str]:
        return [self.writer.table(table(f"{name}{n}", {"id": "int8", "v": "text"})) for n in range(count)]

    def growth(self) -> dict[str, float]:
        """Measure a thousand changes of random keys, by the size of the table."""
        figures = {}
        rng = random.Random(2)
        for size in GROWTH:
            name = self.writer.table(replace(ORDERS, table=f"grown{size}"))
            with self.writer.commit() as tx:
                tx.upsert(name, order(0, 0))
            self.mirror()
            like = self.spark.table(f"twofold.public.{name}")
            rows = self.spark.range(1, size).join(like.drop("id").limit(1))
            rows.select(*like.columns).writeTo(f"twofold.public.{name}").append()
            self.plain("plain", SPARK_DEFAULTS, name)
            plain_s = []
            rows.select(*like.columns).writeTo(f"twofold.plain.{name}").append()
            self.applied.clear()
            for version in range(1, 4):
                with self.writer.commit() as tx:
                    for key in rng.sample(range(size), 1000):
                        tx.upsert(name, order(key, version), op="u")
                self.mirror()
                plain_s += self.plain("plain", SPARK_DEFAULTS, name)[2]
            figures[f"grown_{size}_s"] = round(median(a.seconds for a, _ in self.applied), 2)
            figures[f"plain_grown_{size}_s"] = round(median(plain_s), 2)
        return figures

    def changelog(self) -> float:
        kafka, registry = Kafka(self.writer.bootstrap), Registry(self.writer.registry)
        began = time.monotonic()
        changelog = Changelog(self.spark, kafka, registry, (self.writer.prefix,))
        changelog.run(self.folder / "changelog-checkpoint", Trigger.parse("available-now"))
        changelog.close()
        return time.monotonic() - began

    def read_alone(self) -> float:
        """Read and decode all records as the plain job does, and write nothing."""
        began = time.monotonic()
        records = self.spark.read.format("kafka").options(**Kafka(self.writer.bootstrap).options("read_committed"))
        rows = records.option("subscribe", "bench.public.orders").option("startingOffsets", "earliest").load()
        decoded = rows.select(from_avro(f.expr("substring(value, 6)"), json.dumps(self.registry_schema())).alias("e"))
        decoded.select("e.*").write.format("noop").mode("overwrite").save()
        return time.monotonic() - began

    def memory(self) -> int:
        """Return the JVM's present memory in MB."""
        assert self.spark._jvm is not None
        pages = Path(f"/proc/{self.spark._jvm.java.lang.ProcessHandle.current().pid()}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE") >> 20

    def latency(self) -> dict[str, float]:
        """Measure the time from Kafka's commit to the cut, with a trigger of a second."""
        committed: dict[int, float] = {}
        names = self.small_tables("late", 2)

        def write_changes() -> None:
            began = time.monotonic()
            while time.monotonic() - began < LATENCY_SECONDS:
                time.sleep(0.05)
                with self.writer.commit() as tx:
                    for name in names:
                        tx.upsert(name, {"id": self.writer.sequence % 500, "v": "x"})
                committed[self.writer.sequence] = time.time()
            self.await_applied()

        self.run_beside("interval=1s", write_changes)
        seen = sorted(next(at for a, at in self.applied if a.cut.sequence >= s) - when for s, when in committed.items())
        return {"latency_p50_s": round(seen[len(seen) // 2], 2), "latency_p99_s": round(seen[len(seen) * 99 // 100], 2)}

    def run_beside(self, trigger: str, write_changes: Callable[[], None]) -> None:
        """Run a job while a thread writes."""
        self.applied.clear()
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(write_changes)
            # Ends the job, also if the writer failed.
            writing.add_done_callback(lambda _: os.kill(os.getpid(), signal.SIGTERM))
            self.job(trigger).run()
            writing.result()

    def await_applied(self) -> None:
        """Wait until what was written is in a cut."""
        while not self.applied or self.applied[-1][0].cut.sequence < self.writer.sequence:
            time.sleep(0.05)

    def mirror(self) -> tuple[float, float]:
        """Run the mirror; return seconds, and CPU seconds of the JVM."""
        began, cpu = time.monotonic(), self.cpu()
        self.job("available-now").run()
        print(f"  {self.applied[-1][0]}")
        return time.monotonic() - began, self.cpu() - cpu

    def cpu(self) -> float:
        """Return the CPU seconds that the JVM has used so far."""
        assert self.spark._jvm is not None
        process = self.spark._jvm.java.lang.ProcessHandle.current()
        return float(process.info().totalCpuDuration().get().toMillis()) / 1000

    def job(self, trigger: str) -> StreamingJob:
        kafka, registry = Kafka(self.writer.bootstrap), Registry(self.writer.registry)
        mirror = Mirror(
            self.spark,
            kafka,
            registry,
            (self.writer.prefix,),
            IcebergPlace(),
            MirrorSettings(maintain_every=10_000),
            report=lambda _, batch: self.applied.append((batch, time.time())),
        )
        job = StreamingJob("mirror", mirror)
        self.writer.visible()
        job.start(mirror.open_stream(), self.folder / "mirror-checkpoint", Trigger.parse(trigger))
        return job

    def plain(
        self,
        name: str,
        settings: Mapping[str, str],
        orders: str = "orders",
        properties: Mapping[str, str] | None = None,
    ) -> tuple[float, float, list[float]]:
        """Run a job as tutorials show it: the topic's stream, the last change of each key, MERGE.

        Return seconds, CPU seconds of the JVM, and the seconds of each batch.
        """
        schema, into = json.dumps(self.registry_schema(orders)), f"twofold.{name}.{orders}"
        seconds: list[float] = []
        spark = self.spark.newSession()
        for key, value in settings.items():
            spark.conf.set(key, value)
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS twofold.{name}")

        def merge(batch: DataFrame, _number: int) -> None:
            began = time.monotonic()
            decoded = batch.select("offset", from_avro(f.expr("substring(value, 6)"), schema).alias("e"))
            rows = decoded.select("offset", "e.op", f.coalesce("e.after", "e.before").alias("row")).select(
                "offset", "op", "row.*"
            )
            newest = Window.partitionBy("id").orderBy(f.col("offset").desc())
            last = rows.withColumn("n", f.row_number().over(newest)).where("n = 1").drop("n", "offset")
            spark = batch.sparkSession
            if not spark.catalog.tableExists(into):
                new = last.drop("op").limit(0).writeTo(into).using("iceberg")
                for key, value in (properties or {}).items():
                    new = new.tableProperty(key, value)
                new.create()
            last.createOrReplaceTempView("changes")
            columns = [c for c in last.columns if c != "op"]
            spark.sql(
                f"MERGE INTO {into} t USING changes s ON t.id = s.id WHEN MATCHED AND s.op = 'd' THEN DELETE "
                f"WHEN MATCHED THEN UPDATE SET {', '.join(f'{c} = s.{c}' for c in columns)} WHEN NOT MATCHED AND s.op <> 'd' "
                f"THEN INSERT ({', '.join(columns)}) VALUES ({', '.join(f's.{c}' for c in columns)})"
            )
            seconds.append(time.monotonic() - began)

        source = spark.readStream.format("kafka").options(**Kafka(self.writer.bootstrap).options("read_committed"))
        source = source.option("subscribe", f"bench.public.{orders}").option("startingOffsets", "earliest")
        source = source.option("maxOffsetsPerTrigger", 500_000)
        began, cpu = time.monotonic(), self.cpu()
        query = source.load().writeStream.foreachBatch(merge).trigger(availableNow=True)
        query = query.option("checkpointLocation", str(self.folder / f"{name}-{orders}-checkpoint"))
        query.start().awaitTermination()
        return time.monotonic() - began, self.cpu() - cpu, seconds

    def registry_schema(self, orders: str = "orders") -> object:
        subject = Registry(self.writer.registry).find_subject(f"bench.public.{orders}-value")
        assert subject is not None
        return subject.latest

    def check(self, *namespaces: str, orders: str = "orders", where: str = "true") -> None:
        """Compare the tables with what was written."""
        written = {row["id"]: row["version"] for row in self.writer.model[orders].values()}
        for namespace in namespaces:
            found = self.spark.table(f"twofold.{namespace}.{orders}").where(where).select("id", "version")
            assert {row["id"]: row["version"] for row in found.collect()} == written, namespace


def order(number: int, version: int) -> dict[str, object]:
    return {
        "id": number, "quantity": version % 100, "customer": f"customer {number % 5000}", "price": version / 7, "paid": version % 3 == 0,
        "details": f'{{"sku": "A-{version % 977}", "gift": true}}', "note": "n" * (10 + version % 40), "version": version,
    }  # fmt: skip


def change(tx: Open, rng: random.Random, keys: int, number: int, name: str, spread: int = 1) -> None:
    key, kind = rng.randrange(keys) * spread, rng.random()
    if kind < 0.05 and key in tx.writer.model[name]:
        tx.delete(name, key)
    else:
        tx.upsert(name, order(key if kind < 0.95 else (keys + number) * spread, number))


def write(writer: Writer, many: int, one: Callable[[Open, int], None]) -> None:
    for start in range(0, many, TRANSACTION):
        with writer.commit() as tx:
            for n in range(start, min(start + TRANSACTION, many)):
                one(tx, n)


@contextmanager
def timed(what: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    print(f"{what}: {time.monotonic() - began:.1f} s", flush=True)


if __name__ == "__main__":
    given = [*sys.argv[1:], *("1_000_000", "100_000", PARTS)[len(sys.argv) - 1 :]]
    main(int(given[0]), int(given[1]), given[2])
