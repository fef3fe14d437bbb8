"""What is read from frames: those of librdkafka 2.16.0 and Kafka 4.3.1, as they were captured, and
other versions made of them.
"""

from __future__ import annotations

import pytest

from late.frames import Api, Request, correlation_of, read_errors, read_request

PRODUCE_10 = bytes.fromhex(
    "0000000a000000050001630007782e6d61696effff000075300205726f777302000000014800000000000000000000003b000000000299002915001000000000000001a2094d716b000001a2094d716b"
    "00000000000000010000000000000000000112000000010674776f00000000"
)
PRODUCE_10_ANSWER = bytes.fromhex(
    "00000005000205726f7773020000000100000000000000000000ffffffffffffffff0000000000000000010000000000000000"
)
INIT_4 = bytes.fromhex("00160004000000030001630007782e6d61696e0000ea60ffffffffffffffffffff00")
INIT_4_ANSWER = bytes.fromhex("00000003000000000000000000000000000001000000")
ADD_0 = bytes.fromhex(
    "00180000000000040001630006782e6d61696e00000000000000010000000000010004726f7773000000020000000000000001"
)
ADD_0_ANSWER = bytes.fromhex("0000000400000000000000010004726f777300000002000000000000000000010000")
BROKERS_OWN_ADD_5 = bytes.fromhex(
    "0018000500000002001d416464506172746974696f6e734d616e616765722d636c69656e742d30000207782e6d61696e00000000000000010000010205726f77730200000001000000"
)
ABORT_1 = bytes.fromhex("001a0001000000070001630006782e6d61696e0000000000000001000000")
COMMIT_1 = bytes.fromhex("001a0001000000050001630006782e6d61696e0000000000000001000001")
END_1_ANSWER = bytes.fromhex("00000007000000000000")
METADATA = bytes.fromhex("000300090000000100016300")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (PRODUCE_10, Request(Api.PRODUCE, 10, 5, "x.main", 0, None, (("rows", 1),))),
        (INIT_4, Request(Api.INIT_PRODUCER_ID, 4, 3, "x.main", -1)),
        (ADD_0, Request(Api.ADD_PARTITIONS, 0, 4, "x.main", 0, None, (("rows", 0), ("rows", 1)))),
        (ABORT_1, Request(Api.END_TXN, 1, 7, "x.main", 0, False)),
        (COMMIT_1, Request(Api.END_TXN, 1, 5, "x.main", 0, True)),
    ],
    ids=["produce", "init", "add", "abort", "commit"],
)
def test_a_request_of_a_transactional_producer_is_read(body: bytes, expected: Request) -> None:
    assert read_request(body) == expected


@pytest.mark.parametrize("body", [METADATA, BROKERS_OWN_ADD_5, PRODUCE_10.replace(b"\x07x.main", b"\x00")])
def test_other_requests_are_not(body: bytes) -> None:
    """Another api, a version that only brokers use, and a producer without a transactional id."""
    assert read_request(body) is None


def test_a_flexible_version_is_read() -> None:
    flexible = bytes.fromhex("001a000300000005000163") + b"\0\x07x.main" + COMMIT_1[-11:] + b"\0"
    assert read_request(flexible) == Request(Api.END_TXN, 3, 5, "x.main", 0, True)


@pytest.mark.parametrize(
    ("request_body", "answer", "at", "count"),
    [
        (PRODUCE_10, PRODUCE_10_ANSWER, 16, 1),
        (INIT_4, INIT_4_ANSWER, 9, 1),
        (ADD_0, ADD_0_ANSWER, -2, 2),
        (COMMIT_1, END_1_ANSWER, -2, 1),
    ],
)
def test_the_errors_of_an_answer_are_read(request_body: bytes, answer: bytes, at: int, count: int) -> None:
    request = read_request(request_body)
    assert request is not None
    assert read_errors(request, answer) == (0,) * count
    at %= len(answer)
    assert read_errors(request, answer[:at] + b"\0\x30" + answer[at + 2 :]) == (0,) * (count - 1) + (48,)
    assert correlation_of(answer) == int.from_bytes(answer[:4], "big")
