"""A column for each type: what readers of the topics are tried with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sample:
    """A type and some of its values, as SQL expressions."""

    name: str
    type: str
    values: tuple[str, ...]
    special: bool = False
    """Values that their Avro type cannot say."""

    @property
    def column(self) -> str:
        return f"v_{self.name}"

    def value(self, number: int) -> str:
        """The values in turn."""
        return self.values[number % len(self.values)]


PREPARATION = (
    "CREATE EXTENSION IF NOT EXISTS citext",
    "CREATE EXTENSION IF NOT EXISTS hstore",
    "CREATE EXTENSION IF NOT EXISTS ltree",
    "CREATE TYPE mood AS ENUM ('sad', 'ok')",
    "CREATE TYPE pair AS (a int, b text)",
    "CREATE DOMAIN cents AS numeric(9, 2)",
)
"""Of the database of the tables, and of one that they are carried to."""

SAMPLES = (
    Sample("boolean", "boolean", ("true", "false")),
    Sample("smallint", "smallint", ("-32768", "32767")),
    Sample("integer", "integer", ("-2147483648", "2147483647")),
    Sample("bigint", "bigint", ("-9223372036854775808", "9223372036854775807")),
    Sample("real", "real", ("1.5", "'-Infinity'", "'NaN'")),
    Sample("double", "double precision", ("1e-300", "'Infinity'", "0.1")),
    Sample("numeric_bounded", "numeric(12, 2)", ("-1234567890.12", "0.10")),
    Sample("numeric", "numeric", ("12345678901234567890.123456789", "1e-20")),
    Sample("money", "money", ("'-12.30'", "'0.01'")),
    Sample("text", "text", ("'é''\"\\'", "''")),
    Sample("varchar", "varchar(20)", ("'a, b'",)),
    Sample("char", "char(5)", ("'ab'",)),
    Sample("citext", "citext", ("'MiXed'",)),
    Sample("bytea", "bytea", ("'\\x00ff5c'", "''")),
    Sample("date", "date", ("'2024-02-29'", "'0044-03-15'", "'9999-12-31'")),
    Sample("time", "time", ("'23:59:59.999999'", "'00:00'")),
    Sample("timetz", "timetz", ("'12:34:56.5+02'",)),
    Sample("timestamp", "timestamp", ("'2024-02-29 12:34:56.123456'", "'1850-01-01 00:00:00.000001'")),
    Sample("timestamp_3", "timestamp(3)", ("'2024-02-29 12:34:56.123'",)),
    Sample("timestamptz", "timestamptz", ("'2024-02-29 12:34:56.123456+02'", "'1969-12-31 23:59:59.999999Z'")),
    Sample("interval", "interval", ("'1 year 2 months -3 days 04:05:06.789'",)),
    Sample("uuid", "uuid", ("'01234567-89ab-cdef-0123-456789abcdef'",)),
    Sample("json", "json", ("'{\"a\": [1.50, null]}'",)),
    Sample("jsonb", "jsonb", ("'{\"a\": [1.50, null]}'", "'\"x\"'")),
    Sample("markup", "xml", ("'<a b=\"c\">d</a>'",)),
    Sample("enum", "mood", ("'sad'", "'ok'")),
    Sample("domain", "cents", ("1.05",)),
    Sample("bit", "bit(5)", ("B'10110'",)),
    Sample("varbit", "bit varying(9)", ("B'101'",)),
    Sample("inet", "inet", ("'10.1.2.3/8'", "'::1'")),
    Sample("cidr", "cidr", ("'10.0.0.0/8'",)),
    Sample("macaddr", "macaddr", ("'08:00:2b:01:02:03'",)),
    Sample("point", "point", ("'(1.5,-2)'",)),
    Sample("int4range", "int4range", ("'[1,5)'", "'empty'")),
    Sample("tstzrange", "tstzrange", ("'[2024-01-01 00:00:00+00,2024-01-02 00:00:00+00)'",)),
    Sample("tsvector", "tsvector", ("'a:1 b:2'::tsvector",)),
    Sample("composite", "pair", ("ROW(1, 'x y')",)),
    Sample("hstore", "hstore", ("'a=>1, b=>NULL'",)),
    Sample("ltree", "ltree", ("'top.science'",)),
    Sample("text_array", "text[]", ("'{a,NULL,\"b c\"}'", "'{}'")),
    Sample("int_array", "int[]", ("'{1,NULL,3}'",)),
    Sample("uuid_array", "uuid[]", ("'{01234567-89ab-cdef-0123-456789abcdef}'",)),
    Sample("timestamp_array", "timestamp[]", ("'{2024-02-29 12:34:56.123456}'",)),
    Sample("numeric_array", "numeric(9, 2)[]", ("'{1.50,NULL}'",)),
    Sample("date_infinite", "date", ("'infinity'", "'0044-03-15 BC'"), special=True),
    Sample("timestamp_infinite", "timestamp", ("'infinity'", "'-infinity'"), special=True),
    Sample("timestamptz_infinite", "timestamptz", ("'infinity'", "'-infinity'"), special=True),
    Sample("time_24", "time", ("'24:00:00'",), special=True),
    Sample("numeric_nan", "numeric(12, 2)", ("'NaN'",), special=True),
    Sample("matrix", "int[]", ("'{{1,2},{3,4}}'",), special=True),
)
