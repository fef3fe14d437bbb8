"""Chromium without a window, driven over its DevTools pipe: one process for a module's tests, a fresh page for each look.

Skips where there is no Chromium; in CI, which must not pass over the status page, that is a failure.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars", "--disable-dev-shm-usage",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-pipe",
)  # fmt: skip


class Page:
    """A page that has been opened. `complaints`: what it wrote to the console, and what it threw."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session

    def do(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.ask(method, parameters, self._session)

    def js(self, expression: str) -> Any:
        """What it gives."""
        answer = self.do("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, expression: str, within_s: float = 20) -> Any:
        deadline = time.monotonic() + within_s
        while not (found := self.js(expression)):
            assert time.monotonic() < deadline, f"did not come true: {expression}\n{self.text()}"
            time.sleep(0.05)
        return found

    def text(self) -> str:
        """What a person can read."""
        return str(self.js("document.body?.innerText"))

    def press(self, key: str) -> None:
        self.do("Input.dispatchKeyEvent", type="keyDown", key=key, text=key if len(key) == 1 else "")
        self.do("Input.dispatchKeyEvent", type="keyUp", key=key)

    def picture(self, file: Path) -> None:
        """The whole page."""
        answer = self.do("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(answer["data"]))

    @property
    def complaints(self) -> list[str]:
        return self._browser.complaints


class Browser:
    def __init__(self, folder: Path) -> None:
        program = next(filter(None, map(shutil.which, NAMES)), None)
        if program is None:
            # `make test` needs nothing but Python and make; `-ra` says at the end what was skipped and why.
            pytest.skip(
                f"the page is tested in Chromium: none of {', '.join(NAMES)} is on PATH (Debian: apt-get install chromium)"
            )
        their_end, self._out = os.pipe()
        self._in, their_out = os.pipe()
        command = [program, *_FLAGS, f"--user-data-dir={folder}", "about:blank"]
        script = f'exec "$@" 3<&{their_end} 4>&{their_out}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", *command],
            pass_fds=(their_end, their_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(their_end)
        os.close(their_out)
        self._numbers = itertools.count(1)
        self._left = b""
        self.complaints: list[str] = []

    def ask(self, method: str, parameters: dict[str, Any], session: str | None = None) -> dict[str, Any]:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters, **({"sessionId": session} if session else {})}
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == number:
                assert "error" not in answer, answer["error"]
                return dict(answer["result"])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            read = os.read(self._in, 1 << 20)
            assert read, "Chromium has ended"
            self._left += read
        message, _, self._left = self._left.partition(b"\0")
        said = dict(json.loads(message))
        if said.get("method") in {"Runtime.exceptionThrown", "Log.entryAdded"}:
            entry = json.dumps(said["params"])
            if "status of 401" not in entry and "status of 500" not in entry:  # answers that a test wants
                self.complaints.append(entry)
        return said

    @contextmanager
    def page(self, url: str, *, dark: bool = False, width: int = 1200) -> Iterator[Page]:
        """Opened at that width, as a device of that theme does."""
        self.complaints.clear()
        target = self.ask("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.ask("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        page = Page(self, session)
        for domain in ("Page", "Runtime", "Log"):
            page.do(f"{domain}.enable")
        page.do("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
        theme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        page.do("Emulation.setEmulatedMedia", features=theme)
        page.do("Page.navigate", url=url)
        try:
            yield page
        finally:
            self.ask("Target.closeTarget", {"targetId": target})

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(20)
        os.close(self._in)
        os.close(self._out)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    made = Browser(tmp_path_factory.mktemp("chromium"))
    yield made
    made.close()


LOOKS: dict[str, dict[str, Any]] = {
    "light": {},
    "dark": {"dark": True},
    "narrow": {"width": 390},
    "narrow-dark": {"width": 390, "dark": True},
}
"""As which the page is looked at."""


def looks(browser: Browser, url: str, name: str, is_drawn: str, judge: Callable[[Page], None]) -> None:
    """Each of LOOKS: drawn, judged, nothing wider than the page, in its theme; the picture goes to TWOFOLD_SCREENSHOTS, if that is set, for people."""
    for look, options in LOOKS.items():
        with browser.page(url, **options) as page:
            page.wait_for(is_drawn)
            judge(page)
            assert page.js("document.documentElement.scrollWidth") <= options.get("width", 1200), (
                f"{name} {look} is too wide"
            )
            ground = page.js("getComputedStyle(document.body).backgroundColor")
            assert (ground == "rgb(16, 20, 27)") is options.get("dark", False), (look, ground)
            assert page.complaints == []
            if folder := os.environ.get("TWOFOLD_SCREENSHOTS"):
                page.picture(Path(folder) / f"{name}-{look}.png")
