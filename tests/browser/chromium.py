"""A headless Chromium, driven by chromedriver in the words of the W3C's WebDriver protocol.

https://www.w3.org/TR/webdriver2/ needs no library for the few requests that these tests make.
"""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # how the protocol names an element
TEXT = "return document.body ? document.body.innerText : ''"
OPTIONS = ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1400,1000")
PATIENCE = 60  # seconds: MLflow's pages are drawn by a megabyte of script


def programs() -> tuple[str, str] | None:
    """The paths of Chromium and of chromedriver; None where one of them is not installed."""
    found = shutil.which("chromium"), shutil.which("chromedriver")
    return None if found[0] is None or found[1] is None else (found[0], found[1])


class Chromium:
    """One window, and those that its links open."""

    def __init__(self, session: str) -> None:
        self.session = session

    def open(self, address: str) -> None:
        """Load a page, not only another part of the one that is shown."""
        _ask("POST", f"{self.session}/frame", {"id": None})
        _ask("POST", f"{self.session}/url", {"url": "about:blank"})
        _ask("POST", f"{self.session}/url", {"url": address})

    @property
    def address(self) -> str:
        return str(_ask("GET", f"{self.session}/url"))

    def run(self, script: str) -> Any:
        """The value that a JavaScript function body returns."""
        return _ask("POST", f"{self.session}/execute/sync", {"script": script, "args": []})

    def text(self, words: str) -> str:
        """What the page says, once it says ``words``."""

        def said() -> str:
            text = str(self.run(TEXT))
            return text if words in text else ""

        return str(until(said, lambda: f"{words!r} on {self.address}: {self.run(TEXT)[-2000:]}"))

    def true(self, expression: str, patience: float = PATIENCE) -> None:
        """Return once a JavaScript expression is true."""
        until(lambda: self.run(f"return {expression}"), lambda: expression, patience)

    def enter_frame(self) -> None:
        """Look at the page within the page, until another one is opened."""
        self.true("document.querySelector('iframe') !== null")
        body = {"using": "css selector", "value": "iframe"}
        _ask("POST", f"{self.session}/frame", {"id": _ask("POST", f"{self.session}/element", body)})

    def click(self, selector: str, using: str = "css selector") -> None:
        """Click the first element of a CSS selector, or the link of a text, once it is there."""
        body = {"using": using, "value": selector}

        def clicked() -> bool:
            with contextlib.suppress(ProtocolError):  # not there yet, or hidden by another
                found = _ask("POST", f"{self.session}/element", body)[ELEMENT]
                _ask("POST", f"{self.session}/element/{found}/click", {})
                return True
            return False

        until(clicked, lambda: f"{selector!r} to click on {self.address}")

    def follow(self, link: str) -> None:
        """Click a link that opens a window, and go there."""
        before = set(_ask("GET", f"{self.session}/window/handles"))
        self.click(link, "link text")
        opened = until(
            lambda: set(_ask("GET", f"{self.session}/window/handles")) - before,
            lambda: f"a window of the link {link!r}",
        )
        _ask("POST", f"{self.session}/window", {"handle": opened.pop()})

    def picture(self, path: Path) -> None:
        """Write what the window shows as PNG."""
        path.write_bytes(base64.b64decode(_ask("GET", f"{self.session}/screenshot")))


class ProtocolError(Exception):
    """The driver refused a request."""


@contextlib.contextmanager
def chromium(binary: str, driver: str) -> Iterator[Chromium]:
    """A browser that ends with the block."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen([driver, f"--port={port}"], stdout=subprocess.DEVNULL)
    try:
        root = f"http://127.0.0.1:{port}"
        until(lambda: _answers(f"{root}/status"), lambda: "chromedriver")
        options = {"binary": binary, "args": list(OPTIONS)}
        wanted = {"capabilities": {"alwaysMatch": {"goog:chromeOptions": options}}}
        session = f"{root}/session/{_ask('POST', f'{root}/session', wanted)['sessionId']}"
        try:
            yield Chromium(session)
        finally:
            _ask("DELETE", session)
    finally:
        process.terminate()
        process.wait()


def _ask(method: str, address: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, data, method=method)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)["value"]
    except urllib.error.HTTPError as error:
        raise ProtocolError(error.read().decode()) from error


def _answers(address: str) -> bool:
    try:
        urllib.request.urlopen(address, timeout=5).close()
    except OSError:
        return False
    return True


def wait_for(address: str) -> None:
    """Return once a server answers."""
    until(lambda: _answers(address), lambda: address)


def until(found: Callable[[], Any], what: Callable[[], str], patience: float = PATIENCE) -> Any:
    """The first true value of ``found``."""
    end = time.monotonic() + patience
    while not (value := found()):
        if time.monotonic() > end:
            raise AssertionError(f"after {patience} s there is still no {what()}")
        time.sleep(0.2)
    return value
