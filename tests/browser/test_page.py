"""The status page in Chromium, light and dark, wide and narrow: healthy, in doubt, behind, refused, no answer, with a token, by keyboard.

The connector that is shown healthy and in doubt is a real one, as are its database, its Kafka and what the mirror's group says. `make screenshots` keeps what was seen.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.request import urlopen

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from fixtures.chromium import Browser, Page, looks
from fixtures.connector import Installation, Maker, wait_until
from twofold.bridge import initial
from twofold.config import load
from twofold.errors import RESET_REPAIR, Refused, Unreachable
from twofold.ops.chronicle import Chronicle
from twofold.ops.health import health
from twofold.ops.metrics import Metrics
from twofold.ops.sampler import Sampler
from twofold.ops.server import Answers, StatusServer
from twofold.ops.snapshot import snapshot
from twofold.runner.observer import BackfillProgress
from twofold_common.positions import Lsn


@pytest.fixture(scope="module")
def bank(module_connector: Maker) -> Installation:
    return module_connector(status={"listen": "127.0.0.1:0"}, prepared={"pool": 1, "hold": 3})


@pytest.fixture(scope="module")
def url(bank: Installation) -> str:
    run = bank.start()
    return str(wait_until(lambda: re.search(r"http://127\.0\.0\.1:\d+/", run.said()), 60)[0])


@contextmanager
def serving(bank: Installation, chronicle: Chronicle, token: str | None = None) -> Iterator[str]:
    """A connector in a state that a running one does not stay in."""
    config, sampler = load(bank.file), Sampler(bank.conninfo, chronicle)
    for _ in range(2):
        sampler.sample()
    sampler.forget()

    def answer(after: float) -> dict[str, object]:
        view = chronicle.view()
        return snapshot(config, view, health(view, turn_bound_s=300), sampler, now=view.since + 1, after=after)

    metrics = Metrics("bank", "bank", chronicle.view, lambda: health(chronicle.view(), turn_bound_s=300), sampler)
    answers = Answers(answer, metrics.text, lambda: health(chronicle.view(), turn_bound_s=300))
    with StatusServer("127.0.0.1", 0, answers, token) as server:
        yield f"http://127.0.0.1:{server.port}/"


def has(*words: str) -> str:
    """JavaScript that is true when a person can read all of it."""
    return f"{json.dumps(words)}.every(words => document.body?.innerText.includes(words))"


def mirrored(bank: Installation, sequence: int, lsn: int) -> None:
    """What a mirror writes when it has published a cut."""
    place = json.dumps({"sequence": sequence, "applied_lsn": lsn, "committed_us": 1_700_000_000_000_000})
    partition = TopicPartition(f"{bank.prefix}.commits", 0, sequence + 1, place)
    asked = ConsumerGroupTopicPartitions(f"{bank.prefix}.mirror", [partition])
    admin = AdminClient({"bootstrap.servers": bank.reader.bootstrap})
    for future in admin.alter_consumer_group_offsets([asked]).values():
        future.result(20)


def test_healthy(bank: Installation, url: str, browser: Browser) -> None:
    bank.sql("INSERT INTO account SELECT g, 0, 'x' FROM generate_series(5000, 5099) g")
    wait_until(lambda: b"twofold_rows_total 100.0" in urlopen(f"{url}metrics").read())
    mirrored(bank, 0, 1)
    drawn = has(bank.prefix, "● running", "up to date", "Every prepared transaction has its outcome", "recovered", "← ours", "Mirror", "of WAL to go")  # fmt: skip
    looks(browser, url, "healthy", drawn, lambda page: None)
    mirrored(bank, 1_000_000, 1 << 60)
    with browser.page(url) as page:
        page.wait_for("document.getElementById('path')?.innerText.includes('cut of')")


def test_in_doubt(bank: Installation, url: str, browser: Browser) -> None:
    for gid in ("<b>first</b>", "second"):
        bank.prepare(gid, f"INSERT INTO account VALUES ({len(gid)}, 0, 'x')")
    wait_until(lambda: b'twofold_in_doubt{state="parked"} 2.0' in urlopen(f"{url}metrics").read())

    def judge(page: Page) -> None:
        assert page.js("document.querySelectorAll('#bars .track span.parked').length") == 2
        assert "hold, 3.0 s" in page.text()

    looks(browser, url, "in-doubt", has("In doubt: 2", "<b>first</b>", "second", "parked"), judge)
    bank.sql("COMMIT PREPARED '<b>first</b>'", "ROLLBACK PREPARED 'second'")
    with browser.page(url) as page:
        page.wait_for(has("In doubt: nothing", "Settled last", "committed", "rolled back"))


def test_behind(bank: Installation, browser: Browser) -> None:
    chronicle = Chronicle()
    chronicle.recovered(initial(applied_lsn=Lsn(1), confirmed_lsn=Lsn(1), sequence=7, pool=1))
    chronicle.loading((BackfillProgress("public.account", "reading", 1000, 4000, 250.0, 12.0),))

    def judge(page: Page) -> None:
        assert re.search(r"[\d.]+ MiB to read", page.text())
        width = page.js("document.querySelector('#tables .track span').style.width")
        assert width == "25%"

    with serving(bank, chronicle) as url:
        looks(browser, url, "behind", has("MiB of WAL", "1000 of about 4000 rows"), judge)


def test_refused(bank: Installation, browser: Browser) -> None:
    chronicle = Chronicle()
    chronicle.ended(Unreachable("Kafka: committing failed: Local: Timed out (_TIMED_OUT)"), 1.4)
    gone = Refused(
        "the topic bank.progress was in use and is gone",
        at_stake="Twofold's record of its progress or its commits is lost with the topic",
        repair=RESET_REPAIR,
    )
    chronicle.given_up(gone)

    def judge(page: Page) -> None:
        assert "up to date" not in page.text()

    with serving(bank, chronicle) as url:
        looks(browser, url, "refused", has("■ refused", gone.what, "at stake:", RESET_REPAIR, "Unreachable"), judge)


def test_by_keyboard(bank: Installation, url: str, browser: Browser) -> None:
    with browser.page(url) as page:
        page.wait_for(has("● running"))
        page.press("t")
        assert page.js("document.documentElement.dataset.theme") == "dark"
        page.press("p")
        assert page.js("document.getElementById('pause').getAttribute('aria-pressed')") == "true"
        page.wait_for("typeof samples !== 'undefined' && samples.length > 0")
        page.js("document.getElementById('p-rows').focus()")
        page.press("ArrowLeft")
        assert page.js("document.querySelector('#p-rows figcaption .num').getAttribute('aria-live')") == "polite"
        page.js("localStorage.clear()")


def test_no_answer(browser: Browser) -> None:
    """A page that was loaded from a process that has gone: here, one whose status is not to be had."""

    def broken(_: float) -> dict[str, object]:
        raise RuntimeError("gone")

    healthy = health(Chronicle().view(), turn_bound_s=1)
    with (
        StatusServer("127.0.0.1", 0, Answers(broken, lambda: b"", lambda: healthy)) as server,
        browser.page(f"http://127.0.0.1:{server.port}/") as page,
    ):
        page.wait_for(has("The connector does not answer since"))


def test_the_token_is_asked_for(bank: Installation, browser: Browser) -> None:
    with serving(bank, Chronicle(), "secret") as url:
        with browser.page(url) as page:
            page.wait_for(has("asks for its token"))
            page.js("document.getElementById('token').value = 'secret'")
            page.js("document.getElementById('ask').requestSubmit()")
            page.wait_for(has(bank.prefix))
            assert "asks for its token" not in page.text()
        with browser.page(f"{url}#token=secret") as page:
            page.wait_for(has(bank.prefix))
