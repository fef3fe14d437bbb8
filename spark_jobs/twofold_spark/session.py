"""The SparkSession of the jobs: made for one machine, or used unchanged under spark-submit.

Under spark-submit, or in a notebook, a session exists before the job. The job uses it as it is, and
checks only what it cannot do without. Otherwise the job makes `local[2]` with 512 MB: time zone
UTC, no web page, two shuffle partitions, everything on loopback.

The Iceberg catalog is `twofold` unless another is named, and is what the options say
(catalog_choice.py). A session that has a catalog of that name keeps it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession, is_remote

from twofold_common import java
from twofold_spark import jars, object_store
from twofold_spark.catalog_choice import SQLITE_FILE, WAREHOUSE_CATALOG, CatalogChoice
from twofold_spark.errors import SetupError
from twofold_spark.java_classes import set_log_level
from twofold_spark.signals import java_spared

CATALOG = "twofold"
_JAVA_OPTIONS = "-XX:+UseSerialGC -XX:ReservedCodeCacheSize=256m -Duser.timezone=UTC"
"""One thread for garbage collection, because the few cores of a laptop are for the rows.

Where only the start matters (a demo, a test), JAVA_TOOL_OPTIONS=-XX:TieredStopAtLevel=1 halves it.
"""

_CONSUMERS = {
    **{
        f"spark.kafka.consumer.{cache}.{name}": value
        for cache in ("cache", "fetchedData.cache")
        for name, value in (("timeout", "5s"), ("evictorThreadRunInterval", "2s"))
    },
    "spark.kafka.consumer.cache.capacity": "128",
}
"""Spark closes idle consumers after seconds instead of five minutes: its evictor looks at ten of
them at each run.

Each large read has consumers of its own, which no later read uses, and each holds a MB or more of
prefetched records. In a backlog of large batches they filled the driver's memory. A minute would
keep all of that minute, up to the capacity, because the timeout is one for all consumers. So a cut
of more than five seconds loses some consumers of its small reads, and makes them again.

Small reads use the consumers of those before. A group of eight has 64 partitions; as many are
Spark's own limit, from which on it closes some for each that is used.
"""
_SMALL_HEAP = {
    "spark.sql.ui.retainedExecutions": "50",
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.broadcast.blockSize": "256k",
}
"""What Spark keeps for its web page, and the memory in which it describes work to its tasks.

By default it keeps a thousand executed plans, and takes 4 MB for each stage and each table's
settings: a batch of six small tables then fills Java's young generation once more.
"""
_LOCAL_FILES = {
    "spark.hadoop.fs.file.impl": "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem",
    # Checkpoints too; Spark's own choice goes past the setting above.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
"""Files of this machine by Java alone.

Without Hadoop's native library, which pyspark does not bring, Hadoop starts a process `chmod` for
each file that it writes: 120 of them for a batch of six tables.
"""


_TIME_ZONE = "spark.sql.session.timeZone"
_RELIED_ON = {
    _TIME_ZONE: ("UTC", "Etc/UTC", "Z", "+00:00"),
    # Else a literal is another text where it has a backslash or a quote: a key is not found in the
    # table, and its row is there twice.
    "spark.sql.parser.escapedStringLiterals": ("false",),
    # Else a new column for instants gets the type without a time zone, and its table is refused.
    "spark.sql.timestampType": ("TIMESTAMP_LTZ",),
    "spark.sql.legacy.postgres.datetimeMapping.enabled": ("false",),
    # Else Delta cuts instants off behind the milliseconds.
    "spark.sql.parquet.outputTimestampType": ("INT96", "TIMESTAMP_MICROS"),
    # Else the rows of a Delta table's file that is gone or torn are passed over, and the table goes
    # on without them.
    "spark.sql.files.ignoreMissingFiles": ("false",),
    "spark.sql.files.ignoreCorruptFiles": ("false",),
    # Else Spark refuses each merge, as if each table had to be reloaded.
    "spark.sql.storeAssignmentPolicy": ("ANSI", "STRICT"),
}
"""Settings of a session that the tables' contents rest on, and their values. The first one is
Spark's own, except that of the time zone.
"""

_NOT_LOGGED, _NOT_SHOWN = "spark.redaction.regex", "spark.sql.redaction.options.regex"
"""Names of settings whose values Spark does not show: those of the context, which its event log
goes by, and those of a session's plans.
"""
_HIDDEN_BY_SPARK = "(?i)secret|password|token|access[.]?key"
"""What Spark takes for the first if nobody sets it."""
_READ_LOG = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
"""Where Spark warns at each read that the consumers have a group's name, which is so on purpose."""
_TASK_LOGS = (
    "org.apache.spark.executor.Executor",
    "org.apache.spark.rpc.netty.Inbox",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.sql.delta.commands",
    "org.apache.spark.sql.execution.datasources.v2",
    "org.apache.spark.util.Utils",
)
"""Where a step that fails is logged, task by task with pages of stack traces, beside the error that
is raised, which the command says in its own words. The inbox logs how a process on its own goes on
after it stood still for two minutes.
"""


def absolute_folder(text: str) -> str:
    """Make a folder of this machine absolute; leave `s3a://...` and the like as they are."""
    return text if "://" in text else str(Path(text).absolute())


def local_settings(warehouse: str, *, memory: str) -> dict[str, str]:
    """All settings of a session on one machine, except its catalog's."""
    in_s3 = object_store.is_s3(warehouse)
    # The whole heap at once: Java would grow it after collections that a larger one does not need.
    java_options = f"-Xms{memory} {_JAVA_OPTIONS}"
    return {
        "spark.driver.extraClassPath": os.pathsep.join(str(jar) for jar in jars.fetch(s3=in_s3)),
        "spark.driver.extraJavaOptions": f"{java_options} {object_store.JAVA_OPTIONS}" if in_s3 else java_options,
        "spark.driver.memory": memory,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        # Spark generates the same code for each batch of a table. With the default of 100 entries
        # it is compiled again.
        "spark.sql.codegen.cache.maxEntries": "5000",
        # Keys of a batch written into the generated code would make it different each time.
        "spark.sql.optimizer.inSetSwitchThreshold": "0",
        # With bucketed scans, which these tables do not have, Spark clones the session for each
        # frame that is cached.
        "spark.sql.sources.bucketing.autoBucketedScan.enabled": "false",
        # Else PySpark asks the JVM three times for each expression that it builds, a thousand
        # times for a batch of six tables, to name its line in an error.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        # Kafka's batches by Spark's newer interface: with the older one, its default for them, each
        # record is converted twice more.
        "spark.sql.sources.useV1SourceList": "avro,csv,json,orc,parquet,text",
        _TIME_ZONE: "UTC",
        **({} if in_s3 else {"spark.sql.warehouse.dir": f"{warehouse}/spark"}),
        "spark.sql.extensions": (
            "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions,io.delta.sql.DeltaSparkSessionExtension"
        ),
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "2",
        # Read a commit record as soon as it arrives, and make no empty batches.
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        "spark.sql.streaming.pollingDelay": "20ms",
        "spark.log.level": "ERROR",
        **_LOCAL_FILES,
        **_CONSUMERS,
        **_SMALL_HEAP,
    }


def open_session(
    warehouse: Path | str,
    *,
    catalog: str = CATALOG,
    choice: CatalogChoice = WAREHOUSE_CATALOG,
    master: str = "local[2]",
    memory: str = "512m",
    java_home: str | None = None,
    checkpoint: str | None = None,
    name: str = "twofold",
) -> SparkSession:
    """Return the existing session, or make one for this machine.

    `checkpoint` is where the stream's is kept, if that is not in the warehouse.
    """
    _refuse_connect()
    existing = SparkSession.getActiveSession()
    if existing is None and "PYSPARK_GATEWAY_PORT" in os.environ:
        existing = SparkSession.builder.getOrCreate()  # spark-submit starts the JVM first, and names its port
    if existing is not None:
        _bound_avro(existing)
        set_log_level(existing, _READ_LOG, "ERROR")
        if not has_catalog(existing, catalog):
            _open_catalog(existing, str(warehouse), catalog, choice)
        else:
            _check_catalog(existing, catalog)
        _check_session(existing)
        return existing
    place = str(warehouse)
    object_store.check_place(place, choice.kind, checkpoint)
    _choose_java(java_home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master(master).appName(name)
    settings = local_settings(place, memory=memory)
    if object_store.is_s3(place):
        settings |= object_store.HADOOP_SETTINGS
    else:
        _make_folder(Path(place))
    for key, value in settings.items():
        builder = builder.config(key, value)
    with java_spared():
        made = builder.getOrCreate()
    _bound_avro(made)
    catalog_settings, hadoop = choice.settings(place, catalog), dict[str, str]()
    if object_store.is_s3(place):
        catalog_settings |= object_store.list_catalog_settings(catalog, choice.properties)
        hadoop = object_store.list_hadoop_credentials(choice.properties)
    _hide_properties(made, catalog, choice)
    _configure(made, catalog_settings, hadoop)
    for logger in _TASK_LOGS:
        set_log_level(made, logger, "OFF")
    return made


def _bound_avro(spark: SparkSession) -> None:
    """Let Avro allocate an eighth of the heap at most for one value of a record.

    It allocates what a length says before it reads. Without a bound a few bytes that say a gigabyte
    are Java's end, and again at each start; with it they are a record that cannot be read. A true
    record of that size would be there several times while it is decoded. Avro reads the properties
    once, before the first record; executors have theirs by `spark.executor.extraJavaOptions`.
    """
    jvm: Any = spark._jvm
    value = jvm.java.lang.Runtime.getRuntime().maxMemory() // 8
    for kind, limit in {"bytes": value, "string": value, "collectionItems": value // 8}.items():
        name = f"org.apache.avro.limits.{kind}.maxLength"
        if jvm.java.lang.System.getProperty(name) is None:
            jvm.java.lang.System.setProperty(name, str(min(limit, 2**31 - 9)))


def _configure(spark: SparkSession, settings: Mapping[str, str], hadoop: Mapping[str, str]) -> None:
    """Give a session settings that may be secrets.

    Only once Java runs: PySpark starts it with all settings that there are in its command line,
    which everybody on the machine may read. And Spark's event log hides nothing that the context's
    own configuration lacks.
    """
    context: Any = spark.sparkContext._jsc
    for key, value in settings.items():
        context.sc().conf().set(key, value)
        spark.conf.set(key, value)
    for key, value in hadoop.items():
        context.hadoopConfiguration().set(key, value)


def _hide_properties(spark: SparkSession, catalog: str, choice: CatalogChoice) -> None:
    """Keep what the catalog's file has out of Spark's web page and its event log.

    Both show the settings of a session with each execution, except those whose names say that they
    are secret. A REST catalog's `credential` and `header.Authorization` do not.
    """
    names = [re.escape(f"spark.sql.catalog.{catalog}.{name}") for name in choice.properties]
    conf: Any = spark.sparkContext._jsc.sc().conf()
    conf.set(_NOT_LOGGED, "|".join((conf.get(_NOT_LOGGED, _HIDDEN_BY_SPARK), *names)))
    spark.conf.set(_NOT_SHOWN, "|".join((str(spark.conf.get(_NOT_SHOWN)), *names)))


def fork_session(spark: SparkSession) -> SparkSession:
    """Open a session with the settings and catalogs of this one.

    What is set in one later, and its views, are not seen in the other.
    """
    own = spark.newSession()
    for key, value in spark.conf.getAll.items():
        # Spark knows no catalog's settings, so it does not call them modifiable.
        if own.conf.isModifiable(key) or key.startswith("spark.sql.catalog."):
            own.conf.set(key, value)
    return own


def limit_tasks_to_cores(spark: SparkSession) -> None:
    """Lower the number of shuffle partitions to the number of cores.

    Spark's default of 200 would be 200 tasks for a thousand rows.
    """
    cores = spark.sparkContext.defaultParallelism
    if int(spark.conf.get("spark.sql.shuffle.partitions") or 0) > cores:
        spark.conf.set("spark.sql.shuffle.partitions", cores)


def member_catalog(catalog: str, prefix: str) -> str:
    """Return the catalog of a member's tables: its name must be a word of SQL."""
    return f"{catalog}_{re.sub('[^A-Za-z0-9_]', '_', prefix)}"


def open_member_catalogs(spark: SparkSession, warehouse: Path | str, catalog: str, prefixes: Collection[str]) -> None:
    """Make the catalogs of a group's members, each in a folder of the warehouse.

    Catalogs that the session has stay as they are. Beside a catalog of the user's choice all must
    be there.
    """
    whose: dict[str, str] = {}
    for prefix in prefixes:
        if (other := whose.setdefault(member_catalog(catalog, prefix), prefix)) != prefix:
            raise SetupError(
                f"the tables of {other} and {prefix} would be in one Iceberg catalog, {member_catalog(catalog, prefix)}, whose name has _ "
                "where a prefix has - or a dot: mirror them in two places, or start one of them over with another kafka.prefix"
            )
    ours = _is_in_warehouse(spark, warehouse, catalog)
    for prefix in prefixes:
        name = member_catalog(catalog, prefix)
        if has_catalog(spark, name):
            _check_catalog(spark, name)
            continue
        if not ours:
            raise SetupError(
                f"the session has no Iceberg catalog {name!r} for the tables of {prefix}: submit with --conf spark.sql.catalog.{name}=..."
            )
        folder = Path(warehouse) / prefix
        _make_folder(folder)
        for key, value in WAREHOUSE_CATALOG.settings(str(folder), name).items():
            spark.conf.set(key, value)


def open_former_catalog(spark: SparkSession, warehouse: Path | str, catalog: str, prefix: str) -> None:
    """Open the catalog that the tables of a prefix have in a group, if there is one in the
    warehouse.
    """
    if _is_in_warehouse(spark, warehouse, catalog) and (Path(warehouse) / prefix / SQLITE_FILE).exists():
        open_member_catalogs(spark, warehouse, catalog, (prefix,))


def has_catalog(spark: SparkSession, name: str) -> bool:
    return spark.conf.get(f"spark.sql.catalog.{name}", None) is not None


def _is_in_warehouse(spark: SparkSession, warehouse: Path | str, catalog: str) -> bool:
    """Whether the catalog is the default one, a file in the warehouse."""
    return str(spark.conf.get(f"spark.sql.catalog.{catalog}.uri", "")).startswith(f"jdbc:sqlite:{warehouse}/")


def _make_folder(warehouse: Path) -> None:
    try:
        warehouse.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=warehouse).close()
    except OSError as error:
        raise SetupError(
            f"cannot write to --warehouse {warehouse}: {error.strerror}: give a folder of yours"
        ) from error


def _refuse_connect() -> None:
    """Refuse Spark Connect: its client has no JVM, and Spark would run a batch's handler elsewhere.

    PySpark looks at the same variables. The first is set once a session of Connect exists.
    """
    asked = "SPARK_REMOTE" in os.environ or os.environ.get("SPARK_API_MODE", "").lower() == "connect"
    if is_remote() or asked:
        raise SetupError(
            "the jobs do not run over Spark Connect, because they need the JVM of Spark's driver: "
            "unset SPARK_REMOTE and SPARK_API_MODE, and run the job where the driver is, by spark-submit "
            "(docs/services/spark.md has a way for each platform)"
        )


def _open_catalog(spark: SparkSession, warehouse: str, catalog: str, choice: CatalogChoice) -> None:
    """Give a session that is there the catalog of the options; the default one is a file."""
    if choice == WAREHOUSE_CATALOG:
        if "://" in warehouse:
            raise SetupError(
                f"the session has no Iceberg catalog {catalog!r}, and the default one cannot be in {warehouse}: add --catalog-uri, "
                f"or submit with --conf spark.sql.catalog.{catalog}=org.apache.iceberg.spark.SparkCatalog and its properties"
            )
        _make_folder(Path(warehouse))
    _hide_properties(spark, catalog, choice)
    _configure(spark, choice.settings(warehouse, catalog), {})


def _check_catalog(spark: SparkSession, catalog: str) -> None:
    """Refuse a user's catalog that shows a table as it was when the session first read it."""
    setting = f"spark.sql.catalog.{catalog}.cache-enabled"
    if str(spark.conf.get(setting, None)).lower() != "false":
        raise SetupError(
            f"the session's Iceberg catalog {catalog!r} caches tables, so a job would miss what others commit: "
            f"submit with --conf {setting}=false"
        )


def _check_session(spark: SparkSession) -> None:
    """Refuse a session whose user has chosen what would change the tables' contents.

    What nobody has chosen is Spark's own value; of the time zone that is the machine's.
    """
    for name, right in _RELIED_ON.items():
        found = spark.conf.get(name, None if name == _TIME_ZONE else right[0])
        if (found or "").upper() not in map(str.upper, right):
            raise SetupError(
                f"the session's {name} is {found or 'not set'}, with which tables would get other contents: "
                f"submit with --conf {name}={right[0]}"
            )


def _choose_java(java_home: str | None) -> None:
    home = java_home or os.environ.get("JAVA_HOME") or str(java.spark_java_home())
    os.environ["JAVA_HOME"] = home
    program = Path(home) / "bin" / "java"
    if not program.exists():
        raise SetupError(f"{program} does not exist: correct JAVA_HOME or --java-home. Spark 4.1 needs Java 17 or 21")
    printed = subprocess.run([program, "-version"], capture_output=True, text=True, check=False).stderr
    version = printed.partition('version "')[2].partition(".")[0].partition('"')[0]
    if version not in ("17", "21"):
        raise SetupError(f"{program} is Java {version or 'of unknown version'}: Spark 4.1 needs Java 17 or 21")
