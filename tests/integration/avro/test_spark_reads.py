"""Apache's Java Avro, through Spark's `from_avro`, reads of our bytes what fastavro reads: of all
types, and of the hard values.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator
from decimal import Context, Decimal
from typing import Any

import fastavro
import pytest
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.types import ArrayType, DataType, DateType, TimestampNTZType, TimestampType, TimeType

from helpers.avro.capture import SERVER, Capture
from twofold_avro import wire
from twofold_avro.records import without_logical_types
from twofold_avro.schemas import envelope_schema

pytestmark = pytest.mark.core

VALUES: dict[str, list[str]] = {
    "bool": ["t", "f"],
    "int2": ["-32768"],
    "int4": ["2147483647"],
    "int8": ["-9223372036854775808"],
    "oid": ["4294967295"],
    "float4": ["NaN", "-0", "Infinity", "1e-45", "0.1"],
    "float8": ["NaN", "-Infinity", "5e-324", "0.1"],
    "numeric": ["NaN", "1" * 1000, "-0.00"],
    "numeric(12,2)": ["NaN", "-1.28", "1.27", "9999999999.99"],
    "numeric(38,10)": ["-9999999999999999999999999999.9999999999"],
    "text": ["", "\x01'\"\\\U0010ffff", "x" * 100_000],
    "bytea": ["\\x", "\\x" + bytes(range(256)).hex()],
    "date": ["infinity", "0001-01-01", "1582-10-04", "1582-10-15", "9999-12-31", "0044-03-15 BC"],
    "time": ["24:00:00", "00:00:00", "23:59:59.999999"],
    "timestamp": [
        "infinity",
        "0001-01-01 00:00:00",
        "1582-10-04 00:00:00",
        "9999-12-31 23:59:59.999999",
        "10000-01-01 00:00:00",
    ],
    "timestamptz": [
        "-infinity",
        "0001-01-01 00:00:00+00",
        "1969-12-31 23:59:59.999999+00",
        "9999-12-31 23:59:59.999999+00",
    ],
    "uuid": ["00112233-4455-6677-8899-aabbccddeeff"],
    "jsonb": ["1e400", '{"a": [1, null]}'],
    "interval": ["1 year -3 days"],
    "int4[]": ["{}", "{1,NULL}", "{{1},{2}}"],
    "text[]": ['{NULL,"NULL",""}'],
    "timestamptz[]": ["{2024-01-01 00:00:00+00,NULL}", "{infinity}"],
    "numeric(5,1)[]": ["{1.5,NULL}", "{NaN}"],
}


@pytest.fixture
def capture(database: str, prefix: str) -> Iterator[Capture]:
    made = Capture(database, prefix)
    columns = ", ".join(f"c{number} {type_}" for number, type_ in enumerate(VALUES))
    made.run(f"CREATE TABLE public.t (id int PRIMARY KEY, {columns})")
    made.publish("public.t")
    yield made
    made.close()


def comparable(column: Column, type_: DataType) -> Column:
    """Times as the numbers that they are in Avro: Python cannot hold all that Spark and PostgreSQL
    can.
    """
    match type_:
        case ArrayType(elementType=element):
            return f.transform(column, lambda item: comparable(item, element))
        case DateType():
            return f.unix_date(column)
        case TimestampNTZType():
            return f.unix_micros(column.cast("timestamp"))
        case TimestampType():
            return f.unix_micros(column)
        case TimeType():
            return f.time_diff(f.lit("microsecond"), f.make_time(f.lit(0), f.lit(0), f.lit(0)), column)
        case _:
            return column


def test_spark_reads_what_fastavro_reads(capture: Capture, spark: SparkSession) -> None:
    rows = [(f"c{number}", text) for number, texts in enumerate(VALUES.values()) for text in texts]
    for number, (column, text) in enumerate(rows):
        capture.run(f"INSERT INTO public.t (id, {column}) VALUES (%s, %s)", [number, text])
    capture.run("UPDATE public.t SET id = -1 WHERE id = 0")
    capture.run("DELETE FROM public.t WHERE id = 1")
    payloads = capture.changes()
    bench = capture.bench("t")
    values = [m["value"] for _, m in bench.stream(payloads) if m["value"] is not None]
    assert len(values) == len(rows) + 3

    schema = envelope_schema(bench.shape, SERVER.prefix)
    frame = spark.createDataFrame(
        [(number, bytearray(value)) for number, value in enumerate(values)], "n int, value binary"
    )
    decoded = frame.select(
        "n", from_avro(f.expr("substring(value, 6)"), json.dumps(schema), {"mode": "FAILFAST"}).alias("e")
    )
    images = decoded.select("n", "e.*")
    row_type: Any = images.schema["after"].dataType
    picked = [
        f.struct(
            *(comparable(f.col(f"{image}.{field.name}"), field.dataType).alias(field.name) for field in row_type)
        ).alias(image)
        for image in ("before", "after")
    ]
    rest = ("source", "op", "ts_ms", "transaction", "unchanged", "special")
    found = (
        images.select(*picked, *rest, f.isnull("before").alias("no_before"), f.isnull("after").alias("no_after"))
        .orderBy("n")
        .collect()
    )

    plain = fastavro.parse_schema(without_logical_types(schema))
    scales = {f"c{n}": int(t.split(",")[1].split(")")[0]) for n, t in enumerate(VALUES) if "," in t}
    for row, value in zip(found, values, strict=True):
        assert value is not None
        expected: Any = fastavro.schemaless_reader(io.BytesIO(wire.unframe(value)[1]), plain, None)
        got = row.asDict(recursive=True)
        for image in ("before", "after"):
            assert got.pop(f"no_{image}") == (expected[image] is None)
            if expected[image] is None:
                expected.pop(image), got.pop(image)
            else:
                for name, want in expected.pop(image).items():
                    spark_value = got[image][name]
                    assert same(spark_value, want, scales.get(name)), (name, spark_value, want)
                got.pop(image)
        assert got == expected


def same(got: Any, want: Any, scale: int | None) -> bool:
    if isinstance(want, list):
        return len(got) == len(want) and all(same(g, w, scale) for g, w in zip(got, want, strict=True))
    if isinstance(want, bytes) and scale is not None:
        return bool(got == Decimal(int.from_bytes(want, "big", signed=True)).scaleb(-scale, Context(prec=60)))
    if isinstance(want, bytes):
        return bytes(got) == want
    if isinstance(want, float):
        return (math.isnan(got) and math.isnan(want)) or (got, math.copysign(1, got)) == (want, math.copysign(1, want))
    return bool(got == want)
