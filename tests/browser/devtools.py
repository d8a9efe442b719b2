"""Driving Chromium by its DevTools protocol (chromedevtools.github.io/devtools-protocol)."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import signal
import subprocess
from contextlib import asynccontextmanager, contextmanager, suppress
from tempfile import TemporaryDirectory
from threading import Thread
from typing import IO, TYPE_CHECKING, Any, Final

import aiohttp

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

#: Nothing of the browser's own asks the network; root has no sandbox of its own to use.
_OPTIONS: Final = (
    "--headless",
    "--no-sandbox",
    "--no-proxy-server",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-sync",
    "--force-color-profile=srgb",
    "--hide-scrollbars",
    "--mute-audio",
    "--remote-debugging-port=0",
)
_LISTENING: Final = re.compile(rb"DevTools listening on (ws://\S+)")
#: Answers that are not 2xx and that a page may get: a rejected pod, an invalid manifest.
_NO_MISTAKE: Final = re.compile(r"^Failed to load resource: .* status of (409|422) ")
#: The largest message of the browser, in bytes: a picture of a long page.
_MOST_BYTES: Final = 256 << 20
#: Keys by the names that pages see, with the codes of the protocol.
_KEYS: Final = {
    "ArrowLeft": 37,
    "ArrowUp": 38,
    "ArrowRight": 39,
    "ArrowDown": 40,
    "End": 35,
    "Enter": 13,
    "Escape": 27,
    "Home": 36,
    "PageDown": 34,
    "PageUp": 33,
    "Tab": 9,
}
#: What Enter types.
_TEXTS: Final = {"Enter": "\r"}


class PageError(Exception):
    """A script failed in the page, or the browser rejected a command."""


@contextmanager
def running(program: str) -> Iterator[str]:
    """Run a browser with a profile of its own; give the address of its DevTools."""
    with TemporaryDirectory(prefix="numawarden-browser-", ignore_cleanup_errors=True) as profile:
        command = [program, *_OPTIONS, f"--user-data-dir={profile}", "about:blank"]
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        ) as process:
            assert process.stderr is not None
            try:
                address = _address(process.stderr)
                Thread(target=_read_all, args=(process.stderr,), daemon=True).start()
                yield address
            finally:
                # Its children have the pipe open, too.
                os.killpg(process.pid, signal.SIGKILL)


def _address(output: IO[bytes]) -> str:
    """Return where DevTools listen; raises `PageError` with what was printed instead."""
    printed = b""
    while line := output.readline():
        printed += line
        found = _LISTENING.search(line)
        if found is not None:
            return found[1].decode()
    raise PageError(f"the browser ended: {printed.decode(errors='replace')}")


def _read_all(output: IO[bytes]) -> None:
    with suppress(ValueError):  # closed with the process
        while output.read(1 << 16):
            pass


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[Browser]:
    """Drive the browser whose DevTools are at an address, from one event loop."""
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(address, max_msg_size=_MOST_BYTES) as wire,
    ):
        opened = Browser(wire)
        try:
            yield opened
        finally:
            await opened.close()


class Browser:
    """A running browser; `open` gives pages that share nothing with each other."""

    def __init__(self, wire: aiohttp.ClientWebSocketResponse) -> None:
        self._wire = wire
        self._last = 0
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._pages: dict[str, Page] = {}
        self._reading = asyncio.create_task(self._read())

    async def close(self) -> None:
        """Stop reading what the browser sends."""
        self._reading.cancel()
        await asyncio.wait((self._reading,))

    @asynccontextmanager
    async def open(
        self,
        address: str,
        width: int = 1440,
        height: int = 1000,
        *,
        dark: bool = False,
        moving: bool = False,
    ) -> AsyncIterator[Page]:
        """Open an address in a window of this size, without what other pages have stored.

        `dark` and `moving` are the user's preferences (prefers-color-scheme, -reduced-motion).
        """
        context = (await self.send("Target.createBrowserContext"))["browserContextId"]
        target = await self.send("Target.createTarget", url="about:blank", browserContextId=context)
        found = await self.send("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        page = self._pages[found["sessionId"]] = Page(self, found["sessionId"])
        try:
            for domain in ("Page", "Runtime", "Log", "Network"):
                await page.send(f"{domain}.enable")
            await page.resize(width, height)
            await page.prefer(dark=dark, moving=moving)
            await page.send("Page.navigate", url=address)
            yield page
        finally:
            await self.send("Target.disposeBrowserContext", browserContextId=context)
            self._pages.pop(found["sessionId"])

    async def send(
        self, method: str, session: str | None = None, /, **parameters: object
    ) -> dict[str, Any]:
        """Send a command and return its result; raises `PageError`."""
        self._last += 1
        number = self._last
        asked = {"id": number, "method": method, "params": parameters}
        if session is not None:
            asked["sessionId"] = session
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        await self._wire.send_json(asked)
        result = await answer
        if "error" in result:
            raise PageError(f"{method}: {result['error']['message']}")
        found: dict[str, Any] = result["result"]
        return found

    async def _read(self) -> None:
        async for message in self._wire:
            sent = json.loads(message.data)
            if "id" in sent:
                self._waiting.pop(sent["id"]).set_result(sent)
            elif (page := self._pages.get(sent.get("sessionId", ""))) is not None:
                page.heard(sent["method"], sent["params"])
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(PageError("the browser ended"))


class Page:
    """One page; `mistakes` are its errors and warnings, `asked` the addresses that it loaded."""

    def __init__(self, parent: Browser, session: str) -> None:
        self._parent = parent
        self._session = session
        self.mistakes: list[str] = []
        self.asked: list[str] = []

    async def send(self, method: str, **parameters: object) -> dict[str, Any]:
        """Send a command to this page."""
        return await self._parent.send(method, self._session, **parameters)

    async def run(self, script: str) -> Any:  # noqa: ANN401  # whatever JavaScript gives
        """Return the value of an expression, awaited; raises `PageError` if the script fails."""
        answer = await self.send(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in answer:
            failed = answer["exceptionDetails"]
            text = failed.get("exception", {}).get("description", failed["text"])
            raise PageError(f"{script}: {text}")
        return answer["result"].get("value")

    async def until(self, condition: str) -> Any:  # noqa: ANN401  # as above
        """Wait until an expression is true, looked at in every frame, and return its value."""
        return await self.run(
            f"""new Promise((done) => {{
                const look = () => {{
                    let value = null;
                    try {{ value = {condition}; }} catch (error) {{
                        // An element that is not there yet.
                        if (!(error instanceof TypeError)) throw error;
                    }}
                    if (value) done(value); else requestAnimationFrame(look);
                }};
                look();
            }})"""
        )

    async def texts(self, selector: str) -> list[str]:
        """Return the texts of all elements of a selector, as they are seen."""
        found: list[str] = await self.run(
            f"[...document.querySelectorAll({json.dumps(selector)})].map((e) => e.innerText.trim())"
        )
        return found

    async def count(self, selector: str) -> int:
        """Return how many elements a selector finds."""
        return int(await self.run(f"document.querySelectorAll({json.dumps(selector)}).length"))

    async def press(self, key: str, *, control: bool = False) -> None:
        """Press and release a key."""
        text = {"text": _TEXTS[key]} if key in _TEXTS and not control else {}
        common = {
            "key": key,
            "code": key,
            "windowsVirtualKeyCode": _KEYS[key],
            "modifiers": 2 if control else 0,
        }
        await self.send("Input.dispatchKeyEvent", type="keyDown", **common, **text)
        await self.send("Input.dispatchKeyEvent", type="keyUp", **common)

    async def click(self, selector: str) -> None:
        """Click in the middle of an element, with the pointer."""
        place = await self.run(
            f"""(() => {{
                const found = document.querySelector({json.dumps(selector)});
                found.scrollIntoView({{block: "center", behavior: "instant"}});
                const box = found.getBoundingClientRect();
                return {{x: box.x + box.width / 2, y: box.y + box.height / 2}};
            }})()"""
        )
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            pressed = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
            await self.send("Input.dispatchMouseEvent", type=kind, **place, **pressed)

    async def write(self, selector: str, text: str) -> None:
        """Replace the text of a field, as by typing."""
        name = json.dumps(selector)
        await self.run(f"document.querySelector({name}).focus()")
        await self.run(f"document.querySelector({name}).select()")
        await self.send("Input.insertText", text=text)

    async def resize(self, width: int, height: int) -> None:
        """Give the page a window of this size, in CSS pixels."""
        await self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    async def prefer(self, *, dark: bool = False, moving: bool = False) -> None:
        """Set the preferences of the user."""
        features = {
            "prefers-color-scheme": "dark" if dark else "light",
            "prefers-reduced-motion": "no-preference" if moving else "reduce",
        }
        await self.send(
            "Emulation.setEmulatedMedia",
            features=[{"name": name, "value": value} for name, value in features.items()],
        )

    async def screenshot(self, file: Path, *, whole: bool = True) -> None:
        """Write a picture of the page (`whole`) or of its window as PNG."""
        answer = await self.send(
            "Page.captureScreenshot",
            format="png",
            captureBeyondViewport=whole,
            **await self._clip(whole=whole),
        )
        await asyncio.to_thread(_keep, file, base64.b64decode(answer["data"]))

    async def _clip(self, *, whole: bool) -> dict[str, Any]:
        if not whole:
            return {}
        size = (await self.send("Page.getLayoutMetrics"))["cssContentSize"]
        return {"clip": {**size, "scale": 1}}

    async def accessible(self) -> list[tuple[str, str]]:
        """Return role and name of all that assistive technology sees, in order."""
        nodes = (await self.send("Accessibility.getFullAXTree"))["nodes"]
        return [
            (node["role"]["value"], node.get("name", {}).get("value", ""))
            for node in nodes
            if not node["ignored"]
        ]

    def heard(self, method: str, parameters: dict[str, Any]) -> None:
        """Keep what a test may look at of an event."""
        if method == "Network.requestWillBeSent":
            self.asked.append(parameters["request"]["url"])
        self.mistakes.extend(_mistakes(method, parameters))


def _keep(file: Path, picture: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(picture)


def _mistakes(method: str, parameters: dict[str, Any]) -> Iterator[str]:
    if method == "Runtime.exceptionThrown":
        details = parameters["exceptionDetails"]
        yield details.get("exception", {}).get("description", details["text"])
    elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning"):
        yield " ".join(str(each.get("value", each)) for each in parameters["args"])
    elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
        entry = parameters["entry"]
        if not _NO_MISTAKE.search(entry["text"]):
            yield f"{entry['text']} ({entry.get('url', '')})"
