"""A page opened in a real headless Chromium, by its debugging pipe: click, look, read the console. No driver is needed.

Only what tests of HTML need lives here. Where Chromium is not installed, tests that use it are skipped.
"""

import base64
import contextlib
import json
import os
import re
import select
import shutil
import signal
import tempfile
import time

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
REQUIRED = os.environ.get("STATEGRAPH_REQUIRE_CHROMIUM") == "1"  # then a missing Chromium fails instead
DRIVES_CHROMIUM = [
    pytest.mark.trial,
    pytest.mark.skipif(CHROMIUM is None and not REQUIRED, reason="no Chromium: apt-get install chromium"),
]
"""The marks of a file whose tests all drive a browser."""


def needs_chromium(test):
    """Mark a test that drives a browser."""
    for mark in DRIVES_CHROMIUM:
        test = mark(test)
    return test


OPTIONS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
    "--force-color-profile=srgb",
]
PATIENCE = 30.0  # seconds that an answer may take on a busy machine


class Browser:
    """One Chromium with one page. `said` holds what its console said, `asked_for` the addresses that it requested."""

    def __init__(self, dark=False, size=(1280, 900)):
        assert CHROMIUM is not None, "no Chromium: apt-get install chromium"
        self.folder = tempfile.mkdtemp()
        read_end, self.commands = os.pipe()
        self.answers, write_end = os.pipe()
        colours = ["--blink-settings=preferredColorScheme=0"] if dark else []
        options = [*OPTIONS, *colours, f"--window-size={size[0]},{size[1]}", f"--user-data-dir={self.folder}"]
        nothing = os.open(os.devnull, os.O_RDWR)
        # Chromium reads commands from 3 and writes answers to 4; these ends may lie there themselves, so first aside.
        aside = [os.dup(end) for end in (read_end, write_end)]
        moves = [(os.POSIX_SPAWN_DUP2, nothing, n) for n in (0, 1, 2)]
        moves += [(os.POSIX_SPAWN_DUP2, end, 100 + n) for n, end in enumerate(aside)]
        moves += [(os.POSIX_SPAWN_DUP2, 100 + n, 3 + n) for n in (0, 1)]
        self.pid = os.posix_spawn(
            CHROMIUM, [CHROMIUM, *options, "about:blank"], os.environ, file_actions=moves, setsid=True
        )
        for end in (read_end, write_end, nothing, *aside):
            os.close(end)
        self.buffer = b""
        self.number = 0
        self.session = ""
        self.said = []
        self.asked_for = []
        self.loaded = False
        target = self.tell("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.tell("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.tell(f"{domain}.enable")

    def open(self, path):
        """Open a file; returns the seconds until it was loaded and its scripts had run."""
        return self._load("Page.navigate", url=path.as_uri())

    def open_again(self):
        """Load the same address again."""
        return self._load("Page.reload")

    def _load(self, method, **params):
        self.loaded = False
        began = time.monotonic()
        self.tell(method, **params)
        while not self.loaded:
            self._note(self._read(began + PATIENCE))
        return time.monotonic() - began

    def run(self, script):
        """The value of a JavaScript expression on the page."""
        found = self.tell("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def texts(self, selector):
        """The texts of all elements that fit, in order."""
        return self.run(f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.textContent)")  # type: ignore[no-any-return]

    def click(self, selector):
        """Click with the mouse on the middle of the first element that fits."""
        place = self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); if (!e) return null;"
            "e.scrollIntoView({block: 'center'}); const b = e.getBoundingClientRect();"
            "return {x: b.x + b.width / 2, y: b.y + b.height / 2}; })()"
        )
        assert place, f"nothing on the page fits {selector}"
        for kind in ("mousePressed", "mouseReleased"):
            self.tell("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)

    def press(self, key, text=""):
        """Press a key, by its name."""
        codes = {"Enter": 13, "Escape": 27, "ArrowDown": 40, "ArrowUp": 38}
        text = "\r" if key == "Enter" else text or (key if len(key) == 1 else "")
        more = {"text": text} if text else {}
        code = codes.get(key, ord(key[0].upper()))
        self.tell("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **more)
        self.tell("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def screenshot(self, path):
        """The visible part of the page as PNG."""
        path.write_bytes(base64.b64decode(self.tell("Page.captureScreenshot", format="png")["data"]))

    def close(self):
        """End this Chromium, and only this one."""
        with contextlib.suppress(OSError, EOFError, TimeoutError):
            self.tell("Browser.close")
        os.close(self.commands)
        os.close(self.answers)
        deadline = time.monotonic() + 5
        while os.waitpid(self.pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > deadline:
                os.killpg(self.pid, signal.SIGKILL)
                deadline += PATIENCE
            select.select([], [], [], 0.01)
        shutil.rmtree(self.folder, ignore_errors=True)

    def tell(self, method, **params):
        """Give a command and wait for its answer."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session and not method.startswith(("Target", "Browser")):
            message["sessionId"] = self.session
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE
        while True:
            found = self._read(deadline)
            if found.get("id") == self.number:
                assert "error" not in found, f"{method}: {found['error']}"
                return found["result"]  # type: ignore[no-any-return]
            self._note(found)

    def _note(self, event):
        method, params = event.get("method"), event.get("params", {})
        if method == "Page.loadEventFired":
            self.loaded = True
        elif method == "Runtime.exceptionThrown":
            self.said.append(json.dumps(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled":
            self.said.append(f"{params['type']}: {params['args']}")
        elif method == "Log.entryAdded":
            self.said.append(f"{params['entry']['text']} {params['entry'].get('url', '')}".strip())
        elif method == "Network.requestWillBeSent":
            self.asked_for.append(params["request"]["url"])

    def _read(self, deadline):
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.answers], [], [], max(deadline - time.monotonic(), 0))
            if not ready:
                raise TimeoutError(f"Chromium did not answer within {PATIENCE:.0f} seconds")
            more = os.read(self.answers, 1 << 20)
            if not more:
                raise EOFError("Chromium has ended")
            self.buffer += more
        message, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(message)  # type: ignore[no-any-return]


@contextlib.contextmanager
def browsing(dark=False, size=(1280, 900)):
    """A Chromium for the time of a `with`."""
    browser = Browser(dark, size)
    try:
        yield browser
    finally:
        browser.close()


def brightness(colour):
    """Relative luminance, as WCAG 2 defines it."""
    parts = [int(n) / 255 for n in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (n / 12.92 if n <= 0.04045 else ((n + 0.055) / 1.055) ** 2.4 for n in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    low, high = sorted((brightness(one), brightness(other)))
    return (high + 0.05) / (low + 0.05)
