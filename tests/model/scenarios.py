"""The logs that are explored, in words that `logs.Record` explains.

Neighbouring records share a boundary in all of them, and every run ends in two crashes at most,
anywhere, and in one cut connection or two. What takes longest comes first.
"""

from __future__ import annotations

from dataclasses import replace

from model.logs import scenario
from twofold.bridge import Policy

SYNCHRONOUS = Policy(synchronous=True)

FULL = (
    scenario("large", "P1a L2bc P3d T4b K1 L5ab K3", turns=True, chunks=1),
    scenario("large ones, one after the other", "P1a T2b L3bc L4bc K1", turns=True, cuts=1),
    scenario("one", "T1a P2b T3a K2 T4b", turns=True, timeouts=1, parks=9, cuts=1),
    scenario("crossed", "P1a P2b T3c K2 T4b R1 T5a", timeouts=1, cuts=1),
    scenario("three", "P1a P2b P3c R2 T4b K3 K1 T5a", cuts=1),
    scenario("three, all parked in turn", "P1a P2b P3c R2 K3 K1", crashes=1, parks=3),
    scenario("three, a full pool", "P1a P2b T3d P4c K2 T5b R4 K1 T6a", pool=1, cuts=1),
    scenario(
        "one slot again and again", "P1a T2b R1 P3a T4b K3 T5a", pool=1, crashes=1, cuts=2, timeouts=1, turns=True
    ),
    scenario("one key again and again", "P1a K1 P2a T3b K2 T4a P5a R5 T6a", cuts=1),
    scenario("foretold", "T1a P2b T3c K2 T4a", forecasts=2, timeouts=1, cuts=1, parks=0),
    scenario("held back", "P1a T2b P3c K1 R3 T4a", holds=True, timeouts=1, cuts=1),
    scenario("held back, synchronous", "P1a T2b E3 K1 K3 T4a", policy=SYNCHRONOUS, holds=True, cuts=1),
    scenario("by rule, and without rows", "Q1a E2 P3b X4 K2 K1 R3 T5ab", cuts=1),
    scenario("prepared before two_phase_at", "H1a T2b P3c K1 T4a K3", timeouts=1, cuts=1),
    scenario("quiet", "T1a W2 P3b M4a T5a R3 M6b W7", turns=True, chunks=1),
    scenario("synchronous", "P1a T2b P3c K1 T4a R3 W5", pool=1, policy=SYNCHRONOUS, timeouts=1, cuts=1),
    scenario("opened at once", "P1a P2b K1 T3a P4a K2 R4 T5a", policy=Policy(open_at_once=True), timeouts=1),
)

BY_NAME = {each.name: each for each in FULL}

SHORT = (
    replace(BY_NAME["one"], turns=False, timeouts=0, parks=1),
    replace(BY_NAME["three, a full pool"], crashes=0, parks=0, cuts=0),
    replace(BY_NAME["one slot again and again"], parks=0, timeouts=0),
    replace(BY_NAME["foretold"], crashes=1, timeouts=0),
    replace(BY_NAME["held back"], crashes=1, parks=0, timeouts=0, cuts=0),
    replace(BY_NAME["held back, synchronous"], crashes=1, parks=0, cuts=0),
    replace(BY_NAME["by rule, and without rows"], crashes=1, parks=0),
    replace(BY_NAME["prepared before two_phase_at"], crashes=0, parks=0, timeouts=0),
    replace(BY_NAME["quiet"], crashes=0, turns=False, chunks=0),
    replace(BY_NAME["large"], crashes=0, parks=0),
    replace(BY_NAME["large ones, one after the other"], crashes=1, parks=0),
    replace(BY_NAME["synchronous"], crashes=1, timeouts=0, cuts=0),
)
