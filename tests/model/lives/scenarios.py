"""The stories of tables that are explored, in words that `source` explains.

Each has what its name says, and is otherwise as small as it can be.
"""

from __future__ import annotations

from dataclasses import replace

from model.lives.source import Scenario

LEFT_OUT = {1: "a2~", 2: "a2>3"}

FULL = (
    Scenario(
        "all at once",
        "a1 a2 b1",
        {1: "a1~ b1", 2: "a2>3"},
        "B1 P1 K1 T2",
        (("a", "pause"), ("a", "start")),
        ready="b",
        crashes=2,
    ),
    Scenario(
        "two tables are loaded at once, and commands overlap",
        "a1 b1",
        {1: "a1~ b1"},
        "B1 P1 K1",
        (("a", "pause"), ("b", "start")),
        crashes=0,
    ),
    Scenario("one chunk is read while the other is published", "a1 a2", LEFT_OUT, "T1 T2", crashes=2, ahead=True),
    Scenario("a truncate", "a1 a2", {1: "a2", 2: "a*", 3: "a1"}, "T1 T2 T3", crashes=2, ahead=True),
    Scenario(
        "a reload, paused and resumed",
        "a1 a2",
        {1: "a2~", 2: "a1-"},
        "T1 T2",
        (("a", "start"), ("a", "pause"), ("a", "resume")),
        ready="a",
        crashes=1,
    ),
    Scenario("a cancelled load", "a1 a2", {1: "a2~"}, "B1 P1 K1", (("a", "cancel"), ("a", "start"))),
    Scenario(
        "a table joins with a prepared transaction",
        "a1 b1 b2",
        {1: "a1 b2", 2: "b1>3"},
        "B1 P1 Jb K1 T2",
        late="b",
        ready="a",
        crashes=2,
    ),
    Scenario("a prepared transaction and nothing behind it", "a1 a2", {1: "a2"}, "B1 P1 K1", crashes=2),
    Scenario("a prepared transaction rolls back", "a1 a2", {1: "a1", 2: "a2~"}, "B1 P1 B2 R1 T2", crashes=2),
    Scenario("no key", "n1 n2", {1: "n3", 2: "n1-"}, "T1 T2", keyless="n", crashes=2),
    Scenario("no key, prepared", "n1", {1: "n2"}, "B1 P1 K1", (("n", "start"),), keyless="n"),
    Scenario("no key, cancelled", "n1 n2", {1: "n3"}, "T1", (("n", "cancel"), ("n", "start")), keyless="n", crashes=2),
    Scenario(
        "no key, paused", "n1", {1: "n2", 2: "n3"}, "T1 T2", (("n", "pause"), ("n", "cancel")), keyless="n", crashes=1
    ),
)

BY_NAME = {each.name: each for each in FULL}

SHORT = (
    replace(BY_NAME["all at once"], commands=(), crashes=1),
    replace(BY_NAME["one chunk is read while the other is published"], crashes=1),
    replace(BY_NAME["a truncate"], crashes=1, ahead=False),
    replace(BY_NAME["a reload, paused and resumed"], crashes=0),
    replace(BY_NAME["a cancelled load"], crashes=0),
    replace(BY_NAME["a table joins with a prepared transaction"], crashes=1),
    BY_NAME["no key"],
    replace(BY_NAME["no key, cancelled"], crashes=1),
)
