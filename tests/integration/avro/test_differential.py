"""Random rows over all types, from a real server: what fastavro reads of our bytes is what psycopg
reads of the table.

Every row goes three ways: pgoutput as text, pgoutput in binary (for the columns whose binary form
is read) and COPY in binary. Both runs of the transcoder and fastavro must give the same bytes
(`Bench` checks it on every call).
"""

from __future__ import annotations

import datetime as dt
import decimal
import json
import math
import struct
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.types import datetime as psycopg_datetime

from helpers.avro.capture import Bench, Capture, Message
from twofold_avro.types import encoding_of

pytestmark = pytest.mark.core


class Unsayable:
    """What a value is that no reader of Avro can say; psycopg cannot either."""


UNSAYABLE = Unsayable()


def _lenient(loader: type[Any]) -> type[Any]:
    class Lenient(loader):  # type: ignore[misc]
        def load(self, data: Any) -> Any:
            try:
                return super().load(data)
            except psycopg.DataError:
                return UNSAYABLE

    return Lenient


LOADERS = {
    "date": _lenient(psycopg_datetime.DateLoader),
    "time": _lenient(psycopg_datetime.TimeLoader),
    "timestamp": _lenient(psycopg_datetime.TimestampLoader),
    "timestamptz": _lenient(psycopg_datetime.TimestamptzLoader),
}

text = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)
micros = st.integers(0, 999_999)
years = st.one_of(st.integers(1, 9999), st.integers(1900, 2100))
dates = st.one_of(
    st.dates().map(dt.date.isoformat),
    st.sampled_from(["infinity", "-infinity", "0044-03-15 BC", "4713-01-01 BC", "0001-01-01", "0001-12-31 BC"]),
    st.sampled_from(
        ["9999-12-31", "10000-01-01", "123456-07-08", "5874897-12-31", "2000-02-29", "1582-10-15", "1900-03-01"]
    ),
)
times = st.one_of(
    st.times().map(dt.time.isoformat), st.sampled_from(["24:00:00", "00:00:00", "23:59:59.999999", "00:00:00.000001"])
)
timestamps = st.one_of(
    st.datetimes().map(lambda t: t.isoformat(" ")),
    st.sampled_from(
        ["infinity", "-infinity", "0044-03-15 12:00:00 BC", "4713-01-01 00:00:00 BC", "0001-01-01 00:00:00"]
    ),
    st.sampled_from(
        [
            "9999-12-31 23:59:59.999999",
            "10000-01-01 00:00:00",
            "294276-12-31 23:59:59.999999",
            "1969-12-31 23:59:59.999999",
        ]
    ),
)
special_numbers = st.sampled_from(["NaN", "Infinity", "-Infinity"])
numbers = st.decimals(allow_nan=False, allow_infinity=False).map(
    lambda d: f"{d:f}" if abs(d.adjusted()) < 400 else str(d.adjusted())
)
wide_numbers = st.one_of(
    numbers,
    special_numbers,
    st.integers(-(10**1000), 10**1000).map(str),
    st.sampled_from(
        ["0", "0.00", "1e1000", "-1e-1000", "0.0001", "1.10", "10000", "99990000.0001", "1" * 1000 + "." + "9" * 1000]
    ),
)


def decimals(precision: int, scale: int) -> st.SearchStrategy[str]:
    bound = 10**precision - 1
    edges = st.sampled_from([bound, -bound, 0, 1, -1, 127, 128, -128, -129, 32767, 32768, -32768])
    unscaled = st.one_of(st.integers(-bound, bound), edges.filter(lambda n: abs(n) <= bound))
    exact = decimal.Context(prec=60)
    return st.one_of(unscaled.map(lambda n: f"{decimal.Decimal(n).scaleb(-scale, exact):f}"), st.just("NaN"))


def floats(width: Literal[32, 64]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.floats(width=width).map(lambda x: {"inf": "Infinity", "-inf": "-Infinity"}.get(str(x), repr(x))),
        st.just("-0"),
    )


def quoted(item: str | None) -> str:
    return "NULL" if item is None else '"' + item.replace("\\", "\\\\").replace('"', '\\"') + '"'


def arrays(items: st.SearchStrategy[str], *odd: str, delimiter: str = ",") -> st.SearchStrategy[str]:
    plain = st.lists(st.one_of(st.none(), items), max_size=5).map(
        lambda xs: "{" + delimiter.join(map(quoted, xs)) + "}"
    )
    return st.one_of(plain, st.sampled_from(["{}", *odd]))


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), text),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(text, inner, max_size=3)),
    max_leaves=5,
)
documents = st.one_of(
    json_values.map(lambda v: json.dumps(v, ensure_ascii=False)).filter(lambda s: "\\u0000" not in s),
    st.sampled_from(['{"n": 1e400}', "123456789012345678901234567890.123456789", '{"a": 1, "a": 2}', "0.1000"]),
)
integers = {size: st.integers(-(2 ** (8 * size - 1)), 2 ** (8 * size - 1) - 1).map(str) for size in (2, 4, 8)}


@dataclass(frozen=True)
class Case:
    """A column: its type, its values as PostgreSQL reads them, and how the value that psycopg reads
    looks in Avro.
    """

    type: str
    values: st.SearchStrategy[str]
    as_avro: Callable[[Any], Any] = lambda value: value
    as_text: bool = False
    """Carried as PostgreSQL's text."""
    elements_as_text: bool = False


def decimal_or_special(value: Any) -> Any:
    return UNSAYABLE if value.is_nan() else value


def single(value: float) -> float:
    return float(struct.unpack("f", struct.pack("f", value))[0])


def carried(type_: str, *values: str) -> Case:
    return Case(type_, st.sampled_from(values), as_text=True)


CASES = {
    "i2": Case("int2", integers[2]),
    "i4": Case("int4", integers[4]),
    "i8": Case("int8", integers[8]),
    "oid_": Case("oid", st.integers(0, 2**32 - 1).map(str)),
    "xid_": Case("xid", st.integers(0, 2**32 - 1).map(str), int),
    "cid_": Case("cid", st.integers(0, 2**32 - 1).map(str), int),
    "xid8_": Case("xid8", st.integers(0, 2**64 - 1).map(str), as_text=True),
    "f4": Case("float4", floats(32), single),
    "f8": Case("float8", floats(64)),
    "b": Case("bool", st.sampled_from(["t", "f"])),
    "t": Case("text", text),
    "vc": Case("varchar(40)", text),
    "bp": Case("char(31)", text, as_text=False),
    "nm": Case("name", st.text("abcXYZ_0", max_size=20)),
    "ch": Case('"char"', st.sampled_from(["a", "Z", "\\", "", "{", '"'])),
    "by": Case("bytea", st.binary(max_size=40).map(lambda b: "\\x" + b.hex())),
    "n": Case("numeric", wide_numbers, as_text=True),
    "n_12_2": Case("numeric(12,2)", decimals(12, 2), decimal_or_special),
    "n_5": Case("numeric(5)", decimals(5, 0), decimal_or_special),
    "n_38_10": Case("numeric(38,10)", decimals(38, 10), decimal_or_special),
    "n_18_18": Case("numeric(18,18)", decimals(18, 18), decimal_or_special),
    "n_50_3": Case("numeric(50,3)", decimals(50, 3), as_text=True),
    "n_3_5": Case("numeric(3,5)", st.sampled_from(["0.00123", "-0.00999", "NaN"]), as_text=True),
    "n_2_m3": Case("numeric(2,-3)", st.sampled_from(["12000", "-99000", "0"]), as_text=True),
    "d": Case("date", dates),
    "tm": Case("time", times),
    "tm3": Case("time(3)", times),
    "ts": Case("timestamp", timestamps),
    "ts0": Case("timestamp(0)", st.sampled_from(["2024-02-29 23:59:59.6", "1970-01-01 00:00:00"])),
    "tz": Case("timestamptz", timestamps, lambda v: v if v is UNSAYABLE else v.astimezone(dt.UTC)),
    "u": Case("uuid", st.uuids().map(str)),
    "j": Case("json", documents, as_text=True),
    "jb": Case("jsonb", documents, as_text=True),
    "en": Case("mood", st.sampled_from(["happy", "so so", 'q"uote', "ä"])),
    "dom": Case("price", decimals(10, 2).filter(lambda s: s != "NaN"), decimal_or_special),
    "dom2": Case("dear", decimals(10, 2).filter(lambda s: not s.startswith("-")), decimal_or_special),
    "ci": Case("citext", text),
    "tmz": carried("timetz", "24:00:00+05:30", "12:34:56.789-11"),
    "iv": carried("interval", "1 year -2 mons 3 days 04:05:06.789", "-178000000 years", "0"),
    "mo": carried("money", "-12.34", "92233720368547758.07"),
    "ip": carried("inet", "::1/64", "10.1.2.3"),
    "ci_": carried("cidr", "10.0.0.0/8"),
    "ma": carried("macaddr", "08:00:2b:01:02:03"),
    "ma8": carried("macaddr8", "08:00:2b:01:02:03:04:05"),
    "bi": carried("bit(5)", "10110"),
    "vb": carried("varbit", "", "1", "101010101"),
    "pt": carried("point", "(1e300,-0)", "(NaN,Infinity)"),
    "ln": carried("line", "{1,-1,0}"),
    "ls": carried("lseg", "[(0,0),(1,1)]"),
    "bx": carried("box", "(1,1),(0,0)"),
    "pa": carried("path", "((0,0),(1,1))", "[(0,0),(1,1)]"),
    "po": carried("polygon", "((0,0),(1,1),(1,0))"),
    "ci2": carried("circle", "<(0,0),2>"),
    "tv": carried("tsvector", "'a':1A 'b':2", ""),
    "tq": carried("tsquery", "'a' & !'b'"),
    "xm": carried("xml", "<a>ä</a>", "text"),
    "jp": carried("jsonpath", "$.a[*]"),
    "ls2": carried("pg_lsn", "FFFFFFFF/FFFFFFFF", "0/0"),
    "sn": carried("pg_snapshot", "10:20:10,14"),
    "ti": carried("tid", "(4294967295,65535)"),
    "tx": carried("txid_snapshot", "10:20:10,14"),
    "ai_": carried("aclitem", "pg_monitor=r/pg_monitor"),
    "cu": carried("refcursor", "a cursor"),
    "rc": carried("regclass", "pg_class", "-"),
    "rt": carried("regtype", "int4"),
    "rp": carried("regproc", "pg_catalog.now"),
    "rq": carried("regprocedure", "pg_catalog.sum(int4)"),
    "ro": carried("regoper", "pg_catalog.||/"),
    "rs": carried("regoperator", "pg_catalog.+(int4,int4)"),
    "rf": carried("regconfig", "simple"),
    "rd": carried("regdictionary", "simple"),
    "rn": carried("regnamespace", "pg_catalog"),
    "rr": carried("regrole", "pg_monitor"),
    "rl": carried("regcollation", '"C"'),
    "ov": carried("oidvector", "1 2 3"),
    "iv2": carried("int2vector", "1 2 3"),
    "r4": carried("int4range", "[1,5)", "empty", "(,)"),
    "r8": carried("int8range", "[-9223372036854775808,7)"),
    "rm": carried("numrange", "(-1.50,NaN]"),
    "ry": carried("daterange", "[2024-01-01,infinity)"),
    "rts": carried("tsrange", "[2024-01-01 12:00,)"),
    "rt2": carried("tstzrange", "[2024-01-01,infinity)"),
    "mr": carried("nummultirange", "{[1,2),[3.50,)}", "{}"),
    "m4": carried("int4multirange", "{[1,2),[5,)}"),
    "m8": carried("int8multirange", "{}"),
    "my": carried("datemultirange", "{[2024-01-01,2024-02-01)}"),
    "mts": carried("tsmultirange", "{(,2024-01-01 12:00]}"),
    "mtz": carried("tstzmultirange", "{(,)}"),
    "co": carried("pair", '(1,"a ""b""")', "(,)"),
    "hs": carried("hstore", '"a"=>"1", "b"=>NULL', ""),
    "lt": carried("ltree", "a.b.c"),
    "a4": Case("int4[]", arrays(integers[4], "{{1,2},{3,4}}", "[0:1]={5,6}")),
    "a8": Case("int8[]", arrays(integers[8])),
    "at": Case("text[]", arrays(text, '{"NULL",null}', "{{a},{b}}", '{""}', '[2:2]={"x y"}')),
    "af": Case("float8[]", arrays(floats(64))),
    "ab": Case("bool[]", arrays(st.sampled_from(["t", "f"]))),
    "au": Case("uuid[]", arrays(st.uuids().map(str))),
    "ay": Case("bytea[]", arrays(st.binary(max_size=5).map(lambda b: "\\x" + b.hex()))),
    "ad": Case("date[]", arrays(dates)),
    "az": Case(
        "timestamptz[]",
        arrays(timestamps),
        lambda v: [x if x in (None, UNSAYABLE) else x.astimezone(dt.UTC) for x in v],
    ),
    "an": Case(
        "numeric(12,2)[]", arrays(decimals(12, 2)), lambda v: [x if x is None else decimal_or_special(x) for x in v]
    ),
    "ae": Case("mood[]", arrays(st.sampled_from(["happy", "so so", 'q"uote', "ä"])), elements_as_text=True),
    "aw": Case("numeric[]", arrays(wide_numbers), elements_as_text=True),
    "ai": Case("interval[]", arrays(st.sampled_from(["1 day", "-1 mons +02:03:04"])), elements_as_text=True),
    "ax": Case("box[]", arrays(st.sampled_from(["(1,1),(0,0)"]), delimiter=";"), elements_as_text=True),
    "ac": Case("pair[]", arrays(st.sampled_from(['(1,"a ""b""")'])), elements_as_text=True),
    "aj": Case("jsonb[]", arrays(documents), elements_as_text=True),
    "ah": Case("hstore[]", arrays(st.just("a=>1")), as_text=True),
    "ap": Case("price[]", arrays(decimals(10, 2).filter(lambda s: s != "NaN")), elements_as_text=True),
}
"""`price[]` is an array of a domain; its elements are compared as decimals below."""

TYPES = """
CREATE EXTENSION citext; CREATE EXTENSION hstore; CREATE EXTENSION ltree;
CREATE TYPE mood AS ENUM ('happy', 'so so', 'q"uote', 'ä');
CREATE TYPE pair AS (a int, b text);
CREATE DOMAIN price AS numeric(10,2);
CREATE DOMAIN dear AS price CHECK (VALUE >= 0);
"""


def reads_binary(capture: Capture, column: str) -> bool:
    shape = next(c for c in capture.shape("everything").columns if c.name == column)
    return encoding_of(shape.type).reads_binary


@pytest.fixture(scope="module")
def capture(postgres: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Capture]:
    """One database for all examples: `everything` has all columns, `native` those whose binary form
    is read.
    """
    name = f"differential_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    made = Capture(postgres.dsn(name), name)
    try:
        made.run("SET search_path = public")
        made.run(TYPES)
        columns = ", ".join(f"{column} {case.type}" for column, case in CASES.items())
        made.run(f"CREATE TABLE everything (id bigint PRIMARY KEY, {columns})")
        made.publish("everything")
        made.run("INSERT INTO everything (id) VALUES (0)")
        made.changes()
        made.changes("binary")
        native = ", ".join(f"{c} {case.type}" for c, case in CASES.items() if reads_binary(made, c))
        made.run(f"CREATE TABLE native (id bigint PRIMARY KEY, {native})")
        made.run(f"ALTER PUBLICATION {made.name} SET TABLE everything, native")
        made.run("SET search_path = ''")
        for type_, loader in LOADERS.items():
            made.connection.adapters.register_loader(type_, loader)
        yield made
    finally:
        made.run(f"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = '{name}'")
        made.close()
        with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


Row = dict[str, str | None]


def one_row(capture: Capture) -> st.SearchStrategy[Row]:
    values: dict[str, st.SearchStrategy[str | None]] = {c: st.one_of(st.none(), x.values) for c, x in CASES.items()}
    try:
        capture.run("SELECT '<a/>'::xml")
    except psycopg.errors.FeatureNotSupported:
        values["xm"] = st.none()  # this server was built without libxml
    return st.fixed_dictionaries(values)


def check_random_rows(capture: Capture, *, most: int, examples: int) -> None:
    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(one_row(capture), min_size=1, max_size=most))
    def check(generated: list[Row]) -> None:
        compare(capture, generated)

    check()


def test_random_rows(capture: Capture) -> None:
    check_random_rows(capture, most=4, examples=40)


@pytest.mark.slow
def test_many_random_rows(capture: Capture) -> None:
    check_random_rows(capture, most=10, examples=1000)


HARD: dict[str, list[str]] = {
    "n": ["NaN", "Infinity", "-Infinity", "1" * 1000, "1e-1000", "0.00", "-0.0001000", "1e131071"],
    "n_12_2": ["NaN", "0", "-0.01", "9999999999.99", "-1.28", "1.27"],
    "d": [
        "infinity",
        "-infinity",
        "0044-03-15 BC",
        "0001-01-01",
        "9999-12-31",
        "10000-01-01",
        "5874897-12-31",
        "4713-01-01 BC",
    ],
    "tm": ["24:00:00", "23:59:59.999999", "00:00:00"],
    "ts": [
        "infinity",
        "-infinity",
        "0001-01-01 00:00:00",
        "0001-12-31 23:59:59 BC",
        "9999-12-31 23:59:59.999999",
        "294276-12-31 23:59:59.999999",
    ],
    "tz": [
        "infinity",
        "-infinity",
        "0001-01-01 00:00:00+00",
        "2024-01-01 00:00:00+14",
        "10000-01-01 00:00:00+00",
        "4713-01-01 00:00:00+00 BC",
    ],
    "iv": ["-178000000 years", "178000000 years 11 mons", "1 mon -1 day +00:00:00.000001"],
    "tmz": ["24:00:00-15:59", "00:00:00.000001+15:59"],
    "mo": ["-92233720368547758.08", "0"],
    "bi": ["00000"],
    "vb": ["", "1" * 100],
    "ch": ["", "\\", "'"],
    "xid8_": ["18446744073709551615"],
    "ls2": ["FFFFFFFF/FFFFFFFF"],
    "by": ["\\x", "\\x" + bytes(range(256)).hex(), "\\x" + "ab" * 1_000_000],
    "jb": ['{"n": 123456789012345678901234567890.12345678901234567890}', "1e400", '"\\ud83d\\ude00"'],
    "f4": ["NaN", "Infinity", "-Infinity", "-0", "1.17549435e-38", "1e-45", "3.4028235e38"],
    "f8": ["NaN", "Infinity", "-Infinity", "-0", "5e-324", "1.7976931348623157e308"],
    "i8": ["-9223372036854775808", "9223372036854775807"],
    "a4": ["{}", "{NULL}", "{NULL,1,NULL}", "{{1,2},{3,4}}", "[0:1]={5,6}", "{{{1}}}"],
    "at": ['{NULL,"NULL","",","," ","\\\\","\\"","{}"}', "{{a,b}}"],
    "ad": ["{2024-01-01,infinity}", "{NULL}"],
    "t": ["", "\x01\x7f\u0080\ufffe\uffff\U0010ffff", "'\"\\\n\r\t", "x" * 1_000_000],
}


def test_hard_values(capture: Capture) -> None:
    """Each of them alone in a row, so that a failure names it."""
    compare(capture, [{column: value} for column, values in HARD.items() for value in values])


INPUT_REFUSED = {
    "gtsvector",
    "pg_brin_bloom_summary",
    "pg_brin_minmax_multi_summary",
    "pg_dependencies",
    "pg_mcv_list",
    "pg_ndistinct",
    "pg_node_tree",
}
"""PostgreSQL takes no value of them from anybody."""
UNKNOWN = {"oid8", "regdatabase"}
"""PostgreSQL 19 has them; they are text, as every type that is not known."""


def test_no_built_in_type_is_left_out(capture: Capture) -> None:
    """Of this server's version."""
    built_in = capture.run(
        "SELECT typname::text FROM pg_type WHERE typnamespace = 'pg_catalog'::regnamespace AND typtype IN ('b', 'r', 'm')"
        " AND NOT EXISTS (SELECT FROM pg_type element WHERE element.typarray = pg_type.oid)"
    )
    tried = capture.run(
        "SELECT DISTINCT typname::text FROM pg_attribute JOIN pg_type ON pg_type.oid = atttypid"
        " WHERE attrelid = 'public.everything'::regclass"
    )
    assert {name for (name,) in built_in} - {name for (name,) in tried} - UNKNOWN == INPUT_REFUSED


def test_every_code_point(capture: Capture) -> None:
    points = [chr(n) for n in range(1, 0x110000) if not 0xD800 <= n <= 0xDFFF]
    compare(capture, [{"t": "".join(points[at : at + 65_536])} for at in range(0, len(points), 65_536)])


def compare(capture: Capture, rows: list[Row]) -> None:
    """Insert them, and check all ways on which they arrive."""
    capture.run("DELETE FROM public.everything")
    capture.run("DELETE FROM public.native")
    capture.changes()
    capture.changes("binary")
    native = [column for column in CASES if reads_binary(capture, column)]
    with capture.connection.transaction():
        for number, row in enumerate(rows):
            insert(capture, "everything", number, row, list(CASES))
            insert(capture, "native", number, row, native)
    streamed = capture.changes()
    in_binary = capture.changes("binary")
    everything, natives = capture.bench("everything"), capture.bench("native")
    expected = wanted(capture)
    ways = [
        (everything, everything.stream(of(streamed, everything))),
        (everything, everything.copy(capture.copied("everything", "id"))),
        (natives, natives.stream(of(streamed, natives))),
        (natives, natives.stream(of(in_binary, natives))),
        (natives, natives.copy(capture.copied("native", "id"))),
    ]
    for bench, messages in ways:
        check(bench, messages, expected)


def insert(capture: Capture, table: str, number: int, row: Row, columns: list[str]) -> None:
    given_columns = [column for column in columns if row.get(column) is not None]
    values = "".join(f", %s::{qualified(CASES[column].type)}" for column in given_columns)
    names = "".join(f", {column}" for column in given_columns)
    capture.run(
        f"INSERT INTO public.{table} (id{names}) VALUES (%s{values})", [number, *(row[c] for c in given_columns)]
    )


def qualified(type_: str) -> str:
    own = type_.removesuffix("[]") in {"mood", "pair", "price", "dear", "citext", "hstore", "ltree"}
    return f"public.{type_}" if own else type_


def of(payloads: list[bytes], bench: Bench) -> list[bytes]:
    return [p for p in payloads if int.from_bytes(p[1:5], "big") == bench.shape.oid]


def wanted(capture: Capture) -> dict[int, dict[str, tuple[Any, str | None]]]:
    """Of every row and column what fastavro must read, and the text that PostgreSQL has for it."""
    selected = []
    for column, case in CASES.items():
        value = column
        if case.as_text:
            value = in_text(column)
        elif case.elements_as_text:
            each = f"SELECT {in_text(f'{column}[i]')} FROM generate_subscripts({column}, 1) i ORDER BY i"
            value = f"CASE WHEN {column} IS NOT NULL THEN ARRAY({each}) END"
        dimensions = (
            f"array_ndims({column}) > 1 OR array_lower({column}, 1) <> 1" if case.type.endswith("[]") else "false"
        )
        selected.append(f"{value}, {in_text(column)}, {dimensions}")
    found = {}
    for number, *values in capture.run(f"SELECT id, {', '.join(selected)} FROM public.everything"):
        row = {}
        for (column, case), at in zip(CASES.items(), range(0, len(values), 3), strict=True):
            value, as_text, odd = values[at : at + 3]
            row[column] = (None if value is None else avro_value(column, case, value, odd), as_text)
        found[number] = row
    return found


def in_text(value: str) -> str:
    """What its type's output function writes; a cast to text may be another thing."""
    return f"CASE WHEN {value} IS DISTINCT FROM NULL THEN format('%s', {value}) END"


def avro_value(column: str, case: Case, value: Any, odd: bool | None) -> Any:
    if odd and not case.as_text:
        return UNSAYABLE
    if column == "ap":
        return [None if item is None else decimal.Decimal(item) for item in value]
    value = value if case.as_text or case.elements_as_text else case.as_avro(value)
    return UNSAYABLE if isinstance(value, list) and UNSAYABLE in value else value


def check(
    bench: Bench, messages: list[tuple[int, Message]], expected: dict[int, dict[str, tuple[Any, str | None]]]
) -> None:
    assert len(messages) == len(expected)
    for _, message in messages:
        value = bench.value(message)
        after = value["after"]
        assert bench.key(message) == {"id": after["id"]}
        row = expected[after.pop("id")]
        specials = {item["column"]: item["text"] for item in value["special"] if item["row"] == "after"}
        for column, got in after.items():
            want, as_text = row[column]
            if want is UNSAYABLE:
                assert got is None, column
                assert specials.pop(column) == as_text, column
            else:
                assert same(got, want), (column, got, want)
        assert not specials


def same(got: Any, want: Any) -> bool:
    if isinstance(got, float) and isinstance(want, float):
        return (math.isnan(got) and math.isnan(want)) or (
            got == want and math.copysign(1, got) == math.copysign(1, want)
        )
    if isinstance(got, list) and isinstance(want, list):
        return len(got) == len(want) and all(map(same, got, want))
    return type(got) is type(want) and bool(got == want)
