"""The status page in Chromium, light and dark, wide and narrow: healthy, in doubt, behind, loading,
Kafka or PostgreSQL away, refused, hundreds of tables, a stale one, a group with a branch in doubt;
no answer, with a token, by keyboard.

The connector that is shown healthy and in doubt is a real one, as are its database, its Kafka and
what the mirror's group says. `make screenshots` keeps what was seen.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from urllib.request import urlopen

import pytest
from psycopg.conninfo import make_conninfo

from fixtures.chromium import Browser, Page, looks
from fixtures.connector import Installation, Maker, wait_until
from helpers.connector.mirror_place import write_place
from helpers.page.scenes import Clock, Scene, commit, fill_history, overview, pin
from twofold.bridge import events
from twofold.errors import RESET_REPAIR, Refused, Unreachable
from twofold.run.observer import BackfillProgress
from twofold.watch.activity import Activity
from twofold.watch.server import StatusServer, StatusSources, judge_health
from twofold_avro.records import SkippedRow
from twofold_common.mirror_place import MirrorPlace
from twofold_common.positions import Lsn
from twofold_common.secret_sources import SecretFile


@pytest.fixture(scope="module")
def bank(module_connector: Maker) -> Installation:
    return module_connector(status={"listen": "127.0.0.1:0"}, prepared={"pool": 1, "hold": 3})


@pytest.fixture(scope="module")
def url(bank: Installation) -> str:
    run = bank.start()
    return str(wait_until(lambda: re.search(r"http://127\.0\.0\.1:\d+/", run.said()), 60)[0])


LOADS = {"statement": "running", "card": "waiting", "history": "paused", "account": "ready"}


def has(*words: str) -> str:
    """JavaScript that is true when a person can read all of it."""
    return f"{json.dumps(words)}.every(words => document.body?.innerText.includes(words))"


def mirrored(bank: Installation, sequence: int, lsn: int) -> None:
    """What a mirror writes when it has published a cut."""
    place = json.dumps({"sequence": sequence, "applied_lsn": lsn, "committed_us": 1_700_000_000_000_000})
    write_place(bank, place, offset=sequence + 1)


def test_healthy(bank: Installation, url: str, browser: Browser) -> None:
    def rows() -> float:
        counted = re.search(rb"^twofold_rows_total (\S+)$", urlopen(f"{url}metrics").read(), re.MULTILINE)
        return float(counted[1]) if counted else 0.0

    before = rows()
    bank.sql("INSERT INTO account SELECT g, 0, 'x' FROM generate_series(5000, 5099) g")
    wait_until(lambda: rows() == before + 100)
    mirrored(bank, 0, 1)
    drawn = has(
        bank.prefix, "● running", "up to date", "In doubt: nothing", "recovered", "← ours", "Mirror", "of WAL to go"
    )
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
        page.wait_for(has("In doubt: nothing", "Ended last", "committed", "rolled back"))


def test_behind(bank: Installation, browser: Browser) -> None:
    scene = Scene(bank, Clock(time.time()))
    scene.activity.recovered(scene.state)
    scene.activity.tables_known(pin("account", 3, "running"))
    scene.activity.loading((BackfillProgress("public.account", "reading", 1000, 4000, 250.0, 12.0),))
    scene.sampler.sample()
    scene.clock.now += 70

    def judge(page: Page) -> None:
        assert re.search(r"[\d.]+ MiB to read", page.text())
        assert page.js("document.querySelector('#rows .meter i').style.width") == "25%"
        assert "● running" not in page.text()
        assert page.js("document.getElementById('pill').className") == "pill warn"

    drawn = has("▲ 70 s behind", "works through what was written", "MiB to read", "1000 of about 4000 rows")
    with scene.served() as url:
        looks(browser, url, "behind", drawn, judge)


def test_loading(bank: Installation, browser: Browser) -> None:
    """Loads that are read, wait for locks, and are paused; the stream keeps up meanwhile."""
    scene = Scene(bank, Clock(time.time()), applied=1 << 50)
    scene.activity.recovered(scene.state)
    pins = [pin(name, n, load) for n, (name, load) in enumerate(LOADS.items(), 3)]
    scene.activity.tables_known({topic: each for kept in pins for topic, each in kept.items()})
    scene.activity.loading(
        (
            BackfillProgress("public.statement", "reading", 1_340_000, 12_500_000, 91_000.0, 122.0),
            BackfillProgress("public.card", "waiting for locks", 0, 70_000, 0.0, None),
            BackfillProgress("public.history", "paused", 17_000_000, 410_000_000, 0.0, None),
        )
    )
    scene.sampler.sample()

    def judge(page: Page) -> None:
        assert page.js("document.querySelectorAll('#rows .meter').length") == 3

    drawn = has("Tables: 4, 3 of them in load", "2 min left", "waits for locks", "paused, 17.00 M", "● ready")
    with scene.served() as url:
        looks(browser, url, "loading", drawn, judge)


def test_a_row_path_that_is_not_compiled(bank: Installation, browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("twofold.row_path", "twofold.watch.metrics"):
        monkeypatch.setattr(f"{module}.is_compiled", lambda: False)
    scene = Scene(bank, Clock(time.time()))
    scene.activity.recovered(scene.state)
    scene.sampler.sample()
    with scene.served() as url:
        assert b'compiled="false"' in urlopen(f"{url}metrics").read()
        drawn = has(
            "● running", "the row path is not compiled", "remedy:", "Every prepared transaction has its outcome"
        )
        looks(browser, url, "slow", drawn, lambda page: None)


def test_a_silent_broker(bank: Installation, browser: Browser) -> None:
    scene = Scene(bank, Clock(time.time() - 3600))
    scene.activity.recovered(scene.state)
    scene.take(events.PlainRead(1, 1, Lsn(150)), events.Drained())
    scene.sampler.mirror = MirrorPlace(3, Lsn(2), 1_700_000_000_000_000, scene.clock.now - 100)
    scene.clock.now += 40

    def judge(page: Page) -> None:
        assert page.js("document.getElementById('pill').className") == "pill warn"
        assert "up to date" not in page.js("document.getElementById('path').innerText")

    drawn = has("▲ held up", "Kafka has not answered a commit since", "not running since")
    with scene.served() as url:
        looks(browser, url, "silent", drawn, judge)
        scene.sampler.mirror_error = "asking how far the mirror is: " + "a broker is down; " * 24
        looks(browser, url, "frozen", has("a broker is down"), lambda page: None)


def test_postgresql_is_away(bank: Installation, browser: Browser) -> None:
    scene = Scene(bank, Clock(time.time()), applied=1 << 50)
    scene.activity.tables_known(pin("account", 3) | pin("transfer", 4))
    scene.activity.recovered(scene.state)
    fill_history(scene)
    scene.sampler.sample()
    scene.sampler._conninfo = make_conninfo(bank.conninfo, port=1)
    scene.sampler.close_connection()
    scene.sampler.sample()
    scene.clock.now += 40

    def judge(page: Page) -> None:
        assert page.js("document.getElementById('pill').className") == "pill warn"
        assert "up to date" not in page.js("document.querySelector('#path .leg').innerText")
        assert "nothing waits for a coordinator" not in page.text()

    drawn = has(
        "▲ held up",
        "not known: PostgreSQL does not answer",
        "PostgreSQL does not answer since",
        "does not answer since",
        "stands still",
    )
    with scene.served() as url:
        looks(browser, url, "postgresql-away", drawn, judge)


def opens_details(*words: str) -> Callable[[Page], None]:
    """Open what the first table's row hides, which has these words."""

    def judge(page: Page) -> None:
        page.js("document.querySelector('#rows details').open = true")
        page.wait_for(has(*words))
        page.js("draw()")
        assert page.js("document.querySelector('#rows details').open"), "what a person has opened stays open"

    return judge


def test_a_stale_table(bank: Installation, browser: Browser) -> None:
    scene = Scene(bank, Clock(time.time()), applied=1 << 50)
    lacks = "column balance has another type, and the table was rewritten: ALTER TABLE ... ALTER COLUMN ... TYPE"
    scene.activity.recovered(scene.state)
    scene.activity.tables_known(pin("account", 3) | pin("Very old table", 4, stale=lacks))
    scene.sampler.sample()

    judge = opens_details(lacks, "twofold backfill start 'public.Very old table'")
    with scene.served() as url:
        looks(browser, url, "stale", has("Tables: 2, 1 stale", "▲ stale", "● ready"), judge)


def test_a_table_that_lacks_a_row(bank: Installation, browser: Browser) -> None:
    scene = Scene(bank, Clock(time.time()), applied=1 << 50)
    scene.activity.recovered(scene.state)
    scene.activity.tables_known(pin("account", 3))
    lacking = {topic: replace(each, skipped=(SkippedRow(topic, 77),)) for topic, each in pin("account", 3).items()}
    scene.activity.published(commit(account=4), lacking)
    scene.sampler.sample()

    judge = opens_details("A person had 1 row skipped, at 0/4D.", "twofold backfill start public.account")
    with scene.served() as url:
        looks(browser, url, "skipped", has("● ready, lacks 1 row", "row skipped", "public.account: at 0/4D"), judge)


def test_refused(bank: Installation, browser: Browser) -> None:
    scene = Scene(bank, Clock(time.time()))
    scene.activity.tables_known(pin("account", 3) | pin("transfer", 4))
    scene.activity.ended(Unreachable("Kafka: committing failed: Local: Timed out (_TIMED_OUT)"), 1.4)
    gone = Refused(
        "the topic bank.public.account was in use and is gone",
        at_stake="Twofold's record of its progress or its commits is lost with the topic",
        repair=RESET_REPAIR,
    )
    scene.activity.given_up(gone)

    def judge(page: Page) -> None:
        assert "up to date" not in page.text()
        assert page.js("document.getElementById('why').innerText").split("\n") == [
            f"refused: {gone.what}",
            f"  at stake: {gone.at_stake}",
            f"  repair:   {gone.repair}",
        ]
        errors = page.js("[...document.querySelectorAll('#rows tr')].map(row => row.lastChild.innerText.trim())")
        assert errors == ["1", "none"] or errors == ["1", ""]  # nothing is hidden on a phone but "none"

    with scene.served() as url:
        looks(browser, url, "refused", has("■ refused", gone.what, "at stake:", RESET_REPAIR, "Unreachable"), judge)


def test_the_overview(bank: Installation, browser: Browser) -> None:
    scene = overview(bank, time.time())

    def judge(page: Page) -> None:
        rows = page.js("[...document.querySelectorAll('#rows td:nth-child(1)')].map(cell => cell.innerText)")
        assert rows[:2] == ["public.statement", "public.account"], "what is in load first, then what changed last"
        assert page.js("document.querySelectorAll('#live-bars .bar').length") == 2
        assert page.js("document.querySelectorAll('#p-late path.peak').length") == 1
        assert page.js("document.querySelector('#p-late text').textContent") == "0 s"
        assert "48 s" not in page.js(
            "[...document.querySelectorAll('#p-late text')].slice(0, 3).map(t => t.textContent)"
        )

    drawn = has("● running", "Tables: 6, 1 of them in load", "1.20 M", "In doubt: 2", "public.customer (schema 12 after 6)", "load begun", "parked")  # fmt: skip
    with scene.served() as url:
        looks(browser, url, "overview", drawn, judge)


def test_a_bar_opens_to_the_statement_that_keeps_the_global_transaction_whole(
    bank: Installation, browser: Browser
) -> None:
    def open_it(page: Page) -> None:
        page.js("document.querySelector('#live-bars summary').click()")
        shown = "document.querySelector('#live-bars .facts').innerText"
        page.wait_for(f"{shown}.includes('This alone keeps the global transaction whole')")
        facts = page.js(shown)
        assert "4711:transfer-815" in facts
        assert "4711:transfer-815 branch billing of billing is committed" in facts
        assert page.js(
            "[...document.querySelectorAll('#live-bars .bar:first-child code')].map(c => c.textContent)"
        ) == ["COMMIT PREPARED '4711_dHJhbnNmZXItODE1_bGVkZ2Vy';"]
        page.js("document.querySelector('#live-bars .copy button').click()")
        page.wait_for("['Copied', 'Selected'].includes(document.querySelector('#live-bars .copy button').textContent)")
        page.js("draw()")
        assert page.js("document.querySelector('#live-bars .bar').open"), "what a person has opened stays open"

    with overview(bank, time.time()).served() as url:
        looks(browser, url, "group", "document.querySelectorAll('#live-bars .bar').length === 2", open_it)


def test_many_tables_are_found_by_name(bank: Installation, browser: Browser) -> None:
    scene = Scene(bank, Clock(time.time()))
    scene.activity.recovered(scene.state)
    for n in range(400):
        scene.clock.now += 1
        scene.activity.published(commit(**{f"t{n:03}": n + 1}), pin(f"t{n:03}", n))

    def judge(page: Page) -> None:
        assert page.js("document.querySelectorAll('#rows tr').length") == 8

    with scene.served() as url:
        looks(browser, url, "many-tables", has("Tables: 400", "public.t399"), judge)
        with browser.page(url) as page:
            page.wait_for(has("Tables: 400"))
            page.js("document.getElementById('all-tables').click()")
            assert page.js("document.querySelectorAll('#rows tr').length") == 300
            assert "and 100 tables that changed longer ago" in page.text()
            page.js("document.getElementById('filter').value = 't321'; document.getElementById('filter').oninput()")
            assert page.js("[...document.querySelectorAll('#rows td:first-child')].map(c => c.innerText)") == [
                "public.t321"
            ]


def test_ranges(bank: Installation, browser: Browser) -> None:
    scene = Scene(bank, Clock(time.time()))
    fill_history(scene)
    with scene.served() as url, browser.page(url) as page:
        reach = "[...document.querySelectorAll('#p-rows text')].find(t => t.textContent.endsWith('ago')).textContent"
        page.wait_for(f"typeof samples !== 'undefined' && samples.length === 720 && {reach} === '60 min ago'")
        points = "document.querySelector('#p-rows path.curve').getAttribute('d').split('L').length"
        assert page.js(points) == 720
        page.press("1")
        assert (page.js(reach), page.js(points)) == ("5 min ago", 61)
        page.press("3")
        assert page.js(reach) == "1 day ago"
        assert 60 <= page.js(points) <= 75, "one a minute, and those of the minute that is not over"
        page.js("localStorage.clear()")


def test_by_keyboard(bank: Installation, url: str, browser: Browser) -> None:
    with browser.page(url) as page:
        page.wait_for(has("● running"))
        page.wait_for("typeof samples !== 'undefined' && samples.length > 0")  # a paused page gets none
        page.press("t")
        assert page.js("document.documentElement.dataset.theme") == "dark"
        page.press("l")
        assert page.js("getComputedStyle(document.querySelector('#path .pos')).display") == "block"
        page.press("p")
        assert page.js("document.getElementById('pause').getAttribute('aria-pressed')") == "true"
        page.js("document.getElementById('p-rows').focus()")
        page.press("ArrowLeft")
        assert page.js("document.querySelector('#p-rows figcaption .num').getAttribute('aria-live')") == "polite"
        page.js("localStorage.clear()")


def test_no_answer(browser: Browser) -> None:
    """A page that was loaded from a process that has gone: here, one whose status is not to be
    had.
    """

    def broken(_: float) -> dict[str, object]:
        raise RuntimeError("gone")

    healthy = judge_health(Activity().view(), turn_bound_s=1)
    with (
        StatusServer("127.0.0.1", 0, StatusSources(broken, lambda: b"", lambda: healthy)) as server,
        browser.page(f"http://127.0.0.1:{server.port}/") as page,
    ):
        page.wait_for(has("The connector does not answer since"))


def test_the_token_is_asked_for(bank: Installation, browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    token = SecretFile("status.token_file", tmp_path / "token")
    with Scene(bank, Clock(time.time())).served(token) as url:
        with browser.page(url) as page:
            page.wait_for(has("asks for its token"))
            page.js("document.getElementById('token').value = 'secret'")
            page.js("document.getElementById('ask').requestSubmit()")
            page.wait_for(has(bank.prefix))
            assert "asks for its token" not in page.text()
        with browser.page(f"{url}#token=secret") as page:
            page.wait_for(has(bank.prefix))
