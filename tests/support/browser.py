"""A headless Chromium or Chrome, driven by its debugging protocol through two pipes: nothing but it is needed."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
EXECUTABLE = next((path for path in map(shutil.which, NAMES) if path), None)
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
CHECKS = Path(__file__).with_name("report_page.js").read_text(encoding="utf-8")
PATIENCE = 120.0  # seconds; a busy machine starts a browser slowly
KEYS = {"ArrowRight": (39, ""), "ArrowLeft": (37, ""), "Tab": (9, ""), "Enter": (13, "\r"), " ": (32, " ")}
"""Key -> its code and the text that it types."""


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

    def ask(self, expression: str) -> Any:
        """Evaluate a call of one of the functions in `report_page.js`."""
        self.evaluate(f"globalThis.checks ??= (() => {{ {CHECKS}; return checks; }})(); null")
        return self.evaluate(f"checks.{expression}")

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
        self.wait_for("document.documentElement?.dataset.ready > 0")

    def press(self, key: str) -> None:
        code, text = KEYS[key]
        about = {"key": key, "code": "Space" if key == " " else key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", **about, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **about)

    def point(self, selector: str, across: float = 0.5, down: float = 0.5, *, click: bool = False) -> None:
        """Move the mouse to a place of an element, which is scrolled to first, and press it there if asked."""
        # Figures above the element may still be drawn and move it: the mouse waits until it stands still.
        x, y = self.evaluate(
            f"(async () => {{ const e = document.querySelector({json.dumps(selector)}); let before, box, still = 0;"
            " while (still < 3) { e.scrollIntoView({ behavior: 'instant', block: 'center' });"
            " box = e.getBoundingClientRect(); still = before === box.top ? still + 1 : 0; before = box.top;"
            " await new Promise((done) => setTimeout(done, 20)); }"
            f" return [box.left + box.width * {across}, box.top + box.height * {down}]; }})()"
        )
        kinds = ["mouseMoved", *(["mousePressed", "mouseReleased"] if click else [])]
        for kind in kinds:
            button = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **button)

    def click(self, selector: str) -> None:
        self.point(selector, click=True)

    def faults(self) -> list[Any]:
        """Uncaught errors, console messages, forbidden or outgoing requests since the page was opened."""
        noted = self.evaluate("document.documentElement.dataset.errorText")
        logged = [
            event["params"]
            for event in self.events
            if event["method"] in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        ]
        requests = [
            event["params"]["request"]["url"][:80]
            for event in self.events
            if event["method"] == "Network.requestWillBeSent"
            and not event["params"]["request"]["url"].startswith(("file:", "data:", "blob:"))
        ]
        return [*([noted] if noted else []), *logged, *requests]

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
