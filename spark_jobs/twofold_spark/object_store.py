"""`--warehouse s3://...`: the settings of the two clients of S3 in a session that the job makes.

Iceberg writes tables by its own client, and Spark its checkpoints by Hadoop's. Both take the
address, region and credentials from the properties of the catalog, which have Iceberg's names.
Credentials that are not there are those of the environment.
"""

from __future__ import annotations

from collections.abc import Mapping

from twofold_spark.errors import UsageError

JAVA_OPTIONS = "-Daws.requestChecksumCalculation=when_required -Daws.responseChecksumValidation=when_required"
"""Hadoop's client completes no upload of several parts whose parts have checksums that it does not
know of, as the AWS SDK adds them by default. Nor do all stores that speak S3 take them.
"""

_SCHEMES = ("s3://", "s3a://")
_HADOOP_NAMES = {
    "client.region": "endpoint.region",
    "s3.access-key-id": "access.key",
    "s3.endpoint": "endpoint",
    "s3.path-style-access": "path.style.access",
    "s3.secret-access-key": "secret.key",
    "s3.session-token": "session.token",
}
HADOOP_SETTINGS = {
    "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
    "spark.hadoop.fs.AbstractFileSystem.s3.impl": "org.apache.hadoop.fs.s3a.S3A",
    # A file of a checkpoint appears whole, without a rename, which S3 does not have.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager"
    ),
}


def is_s3(place: str) -> bool:
    return place.startswith(_SCHEMES)


def list_catalog_settings(catalog: str, properties: Mapping[str, str]) -> dict[str, str]:
    """List Spark's settings of the catalog's client of S3."""
    return {f"spark.sql.catalog.{catalog}.io-impl": properties.get("io-impl", "org.apache.iceberg.aws.s3.S3FileIO")}


def list_hadoop_credentials(properties: Mapping[str, str]) -> dict[str, str]:
    """List the settings of Hadoop's client of S3, from the properties of the catalog."""
    return {f"fs.s3a.{_HADOOP_NAMES[key]}": value for key, value in properties.items() if key in _HADOOP_NAMES}


def check_place(warehouse: str, catalog_kind: str, checkpoint: str | None) -> None:
    """Refuse a warehouse that a session of the job's own cannot use."""
    if is_s3(warehouse):
        if catalog_kind == "sqlite":
            raise UsageError(
                f"--warehouse {warehouse} needs a catalog, because the default one is a file of this machine: "
                "add --catalog-uri"
            )
        if checkpoint is not None and not is_s3(checkpoint):
            raise UsageError(
                f"--checkpoint {checkpoint} must be in S3, as --warehouse is: leave it out, or give s3://..."
            )
    elif checkpoint is not None and is_s3(checkpoint):
        raise UsageError(
            f"--checkpoint {checkpoint} must be a folder, because --warehouse is not in S3: leave it out, or give a folder"
        )
    elif "://" in warehouse:
        raise UsageError(
            f"--warehouse {warehouse} must be a folder of this machine or s3://...: for other stores, "
            "use spark-submit with their jars and a catalog of your own (docs/use/spark.md shows how)"
        )
