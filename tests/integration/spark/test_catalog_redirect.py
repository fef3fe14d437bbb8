"""An Iceberg catalog that sends its client to another server: what that server gets to see."""

from __future__ import annotations

from contextlib import suppress

import pytest
from pyspark.sql import SparkSession

from helpers.security.guards import Handler, served
from twofold_spark.catalog_choice import CatalogChoice
from twofold_spark.errors import SPARK_ERRORS


class Requests(Handler):
    """Remembers whole requests, and answers as told."""

    seen: list[str]
    location: str | None = None
    status = 200

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        self.seen.append(f"{self.command} {self.path} {self.headers.as_string()} {body}")
        self.send_response(self.status)
        if self.location:
            self.send_header("Location", self.location + self.path)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    do_POST = do_GET  # noqa: N815


def stolen_by_redirect(spark: SparkSession, status: int, secret: dict[str, str]) -> str:
    """Return all that the other server was sent."""
    asked: list[str] = []
    stolen: list[str] = []
    with served(type("Thief", (Requests,), {"seen": stolen})) as thief:
        there = {"seen": asked, "status": status, "location": f"http://localhost:{thief}"}
        with served(type("Catalog", (Requests,), there)) as port:
            name = f"redirected{port}"
            choice = CatalogChoice.choose("rest", f"http://127.0.0.1:{port}", secret)
            for setting, value in choice.settings("s3://lake", name).items():
                spark.conf.set(setting, value)
            with suppress(*SPARK_ERRORS):
                spark.sql(f"SHOW NAMESPACES IN {name}").collect()
    assert "hunter2" in "".join(asked)
    return "".join(stolen)


@pytest.mark.parametrize("status", [302, 307])
@pytest.mark.parametrize("setting", ["token", "header.Authorization"])
def test_the_token_of_a_catalog_does_not_follow_a_redirect(spark: SparkSession, setting: str, status: int) -> None:
    assert "hunter2" not in stolen_by_redirect(spark, status, {setting: "hunter2"})


@pytest.mark.parametrize(("setting", "status"), [("credential", 307), ("header.X-Key", 302)])
def test_what_iceberg_carries_along_is_in_the_threat_model(spark: SparkSession, setting: str, status: int) -> None:
    """Its client has no setting that forbids it. If this fails, it no longer does, and the page may
    say so.
    """
    assert "hunter2" in stolen_by_redirect(spark, status, {setting: "hunter2"})
