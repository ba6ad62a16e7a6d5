"""The page in a real browser: drawn without an error or a request, in both themes, from desk to telephone.

The browser is driven by its own debugging protocol through a pair of pipes, so that nothing but it is needed.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from jax_diversity.report import ReportInputs, write_report
from tests.report_inputs import HOSTILE, make_inputs, many_inputs, nothing_inputs, tiny_inputs

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
EXECUTABLE = next((path for path in map(shutil.which, NAMES) if path), None)
pytestmark = pytest.mark.skipif(
    EXECUTABLE is None, reason="no Chromium or Chrome on the path: the page is not drawn"
)

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
)
PATIENCE = 120.0  # seconds; a busy machine starts a browser slowly


class Browser:
    """One headless browser with one page; messages are JSON objects, each ended by a NUL."""

    def __init__(self, executable: str, profile: Path) -> None:
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        # The browser reads from descriptor 3 and writes to 4; the shell gives our pipes those numbers.
        wiring = f'exec "$0" "$@" 3</dev/fd/{to_browser} 4>/dev/fd/{from_browser}'
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", wiring, executable, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._buffer, self._number, self._session = b"", 0, None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE
        while (answer := self._receive(deadline)).get("id") != self._number:
            self.events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            if not select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError("the browser does not answer")
            piece = os.read(self._in, 1 << 20)
            if not piece:
                raise ConnectionError("the browser ended")
            self._buffer += piece
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)

    def evaluate(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def wait_for(self, expression: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not self.evaluate(expression):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{expression} did not come true: {self.evaluate('document.title')}")
            time.sleep(0.05)

    def open(self, page: Path, width: int = 1280, scheme: str = "light") -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500
        )
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.events.clear()
        self.call("Page.navigate", url=page.as_uri())
        self.wait_for("document.documentElement?.dataset.ready === 'true'")

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=KEYS[key])

    def close(self) -> None:
        with suppress(Exception):
            self.call("Browser.close")
        os.close(self._out)
        os.close(self._in)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


KEYS = {"ArrowRight": 39, "ArrowLeft": 37}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    assert EXECUTABLE is not None
    try:
        browser = Browser(EXECUTABLE, tmp_path_factory.mktemp("profile"))
    except (ConnectionError, BrokenPipeError):  # a packager's stub, a missing library
        pytest.skip(f"{EXECUTABLE} does not start: the page is not drawn")
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    makers: dict[str, Callable[[], ReportInputs]] = {
        "common": make_inputs,
        "hostile": lambda: make_inputs(text=HOSTILE),
        "tiny": tiny_inputs,
        "nothing": nothing_inputs,
        "many": many_inputs,
    }
    paths = {}
    for name, make in makers.items():
        folder = tmp_path_factory.mktemp(name)
        write_report(folder, make())
        paths[name] = folder / "report.html"
    return paths


def faults(browser: Browser) -> list[Any]:
    """Uncaught errors, console messages, forbidden or outgoing requests since the page was opened."""
    noted = browser.evaluate("document.documentElement.dataset.errorText")
    logged = [
        event["params"]
        for event in browser.events
        if event["method"] in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
    ]
    requests = [
        event["params"]["request"]["url"][:80]
        for event in browser.events
        if event["method"] == "Network.requestWillBeSent"
        and not event["params"]["request"]["url"].startswith(("file:", "data:", "blob:"))
    ]
    return [*([noted] if noted else []), *logged, *requests]


@pytest.mark.parametrize("name", ["common", "hostile", "tiny", "nothing"])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_is_drawn_without_a_fault(browser, pages, name, width):
    browser.open(pages[name], width)
    assert faults(browser) == []
    assert browser.evaluate("document.documentElement.dataset.errors") == "0"
    assert browser.evaluate("window.harmed === undefined")
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    drawn = {"common": 9, "hostile": 9}.get(name)
    if drawn is not None:
        assert (
            browser.evaluate("document.querySelectorAll('figure:not([hidden]) .plot.js-plotly-plot').length")
            == drawn
        )
    outside = (
        "[...document.querySelectorAll('[src], [href]')].map(e => e.getAttribute('src') ?? e.getAttribute('href'))"
    )
    assert browser.evaluate(f"{outside}.filter(address => /^([a-z]+:)?\\/\\//i.test(address))") == []


def test_hostile_text_is_shown_as_text(browser, pages):
    browser.open(pages["hostile"])
    texts = browser.evaluate(
        "[...document.querySelectorAll('#cluster-table tbody tr:first-child bdi')].map(e => e.textContent)"
    )
    assert "<img src=x onerror='window.harmed = 2'>" in texts
    assert (
        browser.evaluate("document.querySelectorAll('main a[href], main img, main iframe, main bdi *').length") == 0
    )


def test_the_selectors_change_the_figures_and_obey_the_keyboard(browser, pages):
    browser.open(pages["common"])
    points = "JSON.stringify(document.getElementById('windows').data.map(trace => trace.y))"
    chosen = "document.querySelector('input[name=family]:checked').value"
    before, sentence = browser.evaluate(points), browser.evaluate("document.getElementById('verdict').textContent")
    browser.evaluate("document.querySelector('input[name=family]:checked').focus()")
    browser.press("ArrowRight")
    assert browser.evaluate(chosen) == "length"
    browser.wait_for(f"{points} !== {json.dumps(before)}")
    assert browser.evaluate("document.getElementById('verdict').textContent") != sentence
    browser.evaluate("document.querySelector('input[name=size][value=\"64\"]').click()")
    assert "64-sequence window by length" in browser.evaluate("document.getElementById('verdict').textContent")
    browser.evaluate("document.getElementById('log').click()")
    browser.wait_for("document.getElementById('prefix').layout.yaxis.type === 'log'")
    assert faults(browser) == []


def test_many_orderings_look_different(browser, pages):
    browser.open(pages["many"])
    looks = browser.evaluate(
        "document.getElementById('windows').data.filter(trace => trace.marker)"
        ".map(trace => JSON.stringify([trace.line.color, trace.line.dash, trace.marker.symbol]))"
    )
    assert len(looks) == len(set(looks)) == 9
    assert faults(browser) == []


def test_the_theme_follows_the_system_until_the_button_is_pressed(browser, pages):
    ground = "getComputedStyle(document.body).backgroundColor"
    paper = "document.getElementById('windows').layout.paper_bgcolor"
    browser.open(pages["common"], scheme="light")
    light, light_paper = browser.evaluate(ground), browser.evaluate(paper)
    browser.open(pages["common"], scheme="dark")
    dark, dark_paper = browser.evaluate(ground), browser.evaluate(paper)
    assert light != dark
    assert light_paper != dark_paper
    browser.evaluate("document.getElementById('theme').click()")
    assert browser.evaluate(ground) == light
    browser.wait_for(f"{paper} === '{light_paper}'")
    assert faults(browser) == []


def test_clusters_can_be_filtered(browser, pages):
    browser.open(pages["hostile"])
    browser.evaluate(
        "(() => { const f = document.getElementById('filter'); f.value = 'NO SUCH TOPIC';"
        " f.dispatchEvent(new Event('input')); })()"
    )
    rows = "[...document.querySelectorAll('#cluster-table tbody tr')].filter(row => !row.hidden).length"
    assert browser.evaluate(rows) == 0
    assert browser.evaluate("document.getElementById('filter-count').textContent") == "0 of 60 clusters"
    browser.evaluate(
        "(() => { const f = document.getElementById('filter'); f.value = 'ONERROR';"
        " f.dispatchEvent(new Event('input')); })()"
    )
    assert browser.evaluate(rows) == 60


def test_every_figure_offers_png_and_svg_and_no_server(browser, pages, tmp_path):
    browser.open(pages["common"])
    titles = "[...figure.querySelectorAll('.modebar-btn')].map(button => button.dataset.title)"
    buttons = browser.evaluate(f"[...document.querySelectorAll('figure:not([hidden])')].map(figure => {titles})")
    assert len(buttons) == 9
    assert all(found == ["Save as PNG", "Save as SVG", "Reset axes"] for found in buttons)
    for kind, start in (("svg", "data:image/svg+xml"), ("png", "data:image/png;base64,")):
        picture = browser.evaluate(f"Plotly.toImage(document.getElementById('windows'), {{format: '{kind}'}})")
        assert picture.startswith(start)
        assert len(picture) > 5000
    browser.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    for title, name in (("Save as PNG", "windows.png"), ("Save as SVG", "windows.svg")):
        browser.evaluate(f"document.querySelector('#windows [data-title=\"{title}\"]').click()")
        deadline = time.monotonic() + PATIENCE
        while not (tmp_path / name).exists():
            assert time.monotonic() < deadline, f"{name} was not saved"
            time.sleep(0.1)
    assert faults(browser) == []
