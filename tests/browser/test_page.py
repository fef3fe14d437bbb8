"""The status page in Chromium, light and dark, wide and narrow: healthy, in doubt, behind, refused, no answer. Slow, because it wants a Chromium on PATH: make browser.

The connector that is shown healthy and in doubt is a real one. Screenshots go to TWOFOLD_SCREENSHOTS, if that is set, for people to look at.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest

from fix_connector import Installation, Maker, wait_until
from twofold.bridge import initial
from twofold.config import load
from twofold.errors import Refused, Unreachable
from twofold.ops.chronicle import Chronicle
from twofold.ops.health import health
from twofold.ops.metrics import Metrics
from twofold.ops.sampler import Sampler
from twofold.ops.server import Answers, StatusServer
from twofold.ops.snapshot import snapshot
from twofold.positions import Lsn

pytestmark = pytest.mark.slow

SIZES = {"wide": "1200,1300", "narrow": "500,2400"}
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


@pytest.fixture(scope="session")
def chromium() -> str:
    found = next(filter(None, map(shutil.which, NAMES)), None)
    assert found, f"these tests need one of {', '.join(NAMES)} on PATH: apt-get install chromium"
    return found


class Browser:
    def __init__(self, program: str, folder: Path) -> None:
        self._program, self._folder, self._started = program, folder, 0

    def _run(self, url: str, *options: str) -> str:
        self._started += 1
        flags = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--hide-scrollbars",
            "--virtual-time-budget=6000",
        ]
        quiet = [
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--enable-logging=stderr",
        ]
        profile = f"--user-data-dir={self._folder / str(self._started)}"
        done = subprocess.run(
            [self._program, *flags, *quiet, profile, *options, url],
            capture_output=True,
            text=True,
            timeout=90,
            check=True,
        )
        assert not re.search(r"CONSOLE.*(Uncaught|Refused|violates)", done.stderr), done.stderr
        return done.stdout

    def text(self, url: str) -> str:
        """What stands on the page once it has asked."""
        page = self._run(url, "--dump-dom")
        visible = re.sub(
            r"<script.*?</script>|<style.*?</style>|<[^>]+hidden=\"\".*?</[a-z]+>", " ", page, flags=re.DOTALL
        )
        return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", visible))

    def picture(self, url: str, name: str) -> None:
        for size, pixels in SIZES.items():
            for theme, number in (("light", 1), ("dark", 0)):
                file = Path(os.environ.get("TWOFOLD_SCREENSHOTS", self._folder)) / f"{name}-{size}-{theme}.png"
                self._run(
                    url,
                    f"--screenshot={file}",
                    f"--window-size={pixels}",
                    f"--blink-settings=preferredColorScheme={number}",
                )
                assert file.stat().st_size > 10_000


@pytest.fixture
def browser(chromium: str, tmp_path: Path) -> Browser:
    return Browser(chromium, tmp_path)


@pytest.fixture(scope="module")
def bank(module_connector: Maker) -> Installation:
    return module_connector(status={"listen": "127.0.0.1:0"}, prepared={"pool": 1, "hold": 3})


@pytest.fixture(scope="module")
def url(bank: Installation) -> str:
    return str(wait_until(lambda: re.search(r"http://127\.0\.0\.1:\d+/", bank.start().said()), 60)[0])


@contextmanager
def serving(bank: Installation, chronicle: Chronicle) -> Iterator[str]:
    """A connector in a state that a running one does not stay in."""
    config, sampler = load(bank.file), Sampler(bank.conninfo, chronicle)
    for _ in range(2):
        sampler.sample()
    sampler.forget()

    def answer(after: float) -> dict[str, object]:
        view = chronicle.view()
        return snapshot(config, view, health(view, turn_bound_s=30), sampler, now=view.since + 1, after=after)

    metrics = Metrics("bank", "bank", chronicle.view, lambda: health(chronicle.view(), turn_bound_s=30), sampler)
    answers = Answers(answer, metrics.text, lambda: health(chronicle.view(), turn_bound_s=30))
    with StatusServer("127.0.0.1", 0, answers) as server:
        yield f"http://127.0.0.1:{server.port}/"


def test_healthy(bank: Installation, url: str, browser: Browser) -> None:
    bank.sql("INSERT INTO account SELECT g, 0, 'x' FROM generate_series(5000, 5099) g")
    wait_until(lambda: b"twofold_rows_total 100.0" in urlopen(f"{url}metrics").read())
    text = browser.text(url)
    for words in (
        bank.prefix,
        "● running",
        "up to date",
        "Every prepared transaction has its outcome",
        "recovered",
        "← ours",
    ):
        assert words in text
    browser.picture(url, "healthy")


def test_in_doubt(bank: Installation, url: str, browser: Browser) -> None:
    for gid in ("<b>first</b>", "second"):
        bank.prepare(gid, f"INSERT INTO account VALUES ({len(gid)}, 0, 'x')")
    wait_until(lambda: b'twofold_in_doubt{state="parked"} 2.0' in urlopen(f"{url}metrics").read())
    text = browser.text(url)
    for words in ("In doubt: 2", "&lt;b&gt;first&lt;/b&gt;", "second", "parked", "hold, 3.0 s"):
        assert words in text
    browser.picture(url, "in-doubt")
    bank.sql("COMMIT PREPARED '<b>first</b>'", "ROLLBACK PREPARED 'second'")
    wait_until(lambda: b'twofold_in_doubt{state="parked"} 0.0' in urlopen(f"{url}metrics").read())
    assert "In doubt: nothing" in browser.text(url)


def test_behind(bank: Installation, browser: Browser) -> None:
    chronicle = Chronicle()
    chronicle.recovered(initial(applied_lsn=Lsn(1), confirmed_lsn=Lsn(1), sequence=0, pool=1))
    with serving(bank, chronicle) as url:
        text = browser.text(url)
        assert re.search(r"[\d.]+ MiB to read", text)
        assert re.search(r"[\d.]+ MiB of WAL", text)
        browser.picture(url, "behind")


def test_refused(bank: Installation, browser: Browser) -> None:
    chronicle = Chronicle()
    chronicle.ended(Unreachable("Kafka: committing failed: Local: Timed out (_TIMED_OUT)"), 1.4)
    chronicle.given_up(
        Refused(
            "the topic bank.progress was in use and is gone",
            at_stake="what Twofold knew of its progress or its commits is lost with it",
            repair="twofold backfill start --all",
        )
    )
    with serving(bank, chronicle) as url:
        text = browser.text(url)
        for words in (
            "■ refused",
            "was in use and is gone",
            "at stake:",
            "repair: twofold backfill start --all",
            "Unreachable",
        ):
            assert words in text
        assert "up to date" not in text
        browser.picture(url, "refused")


def test_no_answer(bank: Installation, browser: Browser, tmp_path: Path) -> None:
    """A page that was loaded from a process that has gone: here, one whose status is not to be had."""

    def broken(_: float) -> dict[str, object]:
        raise RuntimeError("gone")

    healthy = health(Chronicle().view(), turn_bound_s=1)
    with StatusServer("127.0.0.1", 0, Answers(broken, lambda: b"", lambda: healthy)) as server:
        assert "The connector does not answer since" in browser.text(f"http://127.0.0.1:{server.port}/")


def test_the_token_is_asked_for(bank: Installation, browser: Browser) -> None:
    chronicle = Chronicle()
    healthy = health(chronicle.view(), turn_bound_s=1)
    sampler = Sampler(bank.conninfo, chronicle)
    config = load(bank.file)
    answers = Answers(
        lambda after: snapshot(config, chronicle.view(), healthy, sampler, now=0, after=after),
        lambda: b"",
        lambda: healthy,
    )
    with StatusServer("127.0.0.1", 0, answers, token="secret") as server:
        assert "asks for its token" in browser.text(f"http://127.0.0.1:{server.port}/")
        text = browser.text(f"http://127.0.0.1:{server.port}/#token=secret")
        assert "asks for its token" not in text
        assert bank.prefix in text
