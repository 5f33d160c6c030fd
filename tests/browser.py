"""A headless Chromium, steered over its DevTools protocol: enough to open a page, ask it things and take its picture."""

import asyncio
import base64
import contextlib
import itertools
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from tests.conditions import wait_until, wait_until_sync

NAMES = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--no-first-run", "--remote-debugging-port=0",
)  # fmt: skip


def chromium() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@dataclass
class Tab:
    """One page. `problems`: what its console complained of."""

    socket: aiohttp.ClientWebSocketResponse
    problems: list[str] = field(default_factory=list)
    _numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))
    _waiting: dict[int, "asyncio.Future[Any]"] = field(default_factory=dict)

    async def call(self, method: str, **params: Any) -> Any:
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        await self.socket.send_json({"id": number, "method": method, "params": params})
        return await answer

    async def listen(self) -> None:
        async for message in self.socket:
            said = message.json()
            if "id" in said:
                self._waiting.pop(said["id"]).set_result(said.get("result", said))
            elif said["method"] == "Runtime.exceptionThrown":
                self.problems.append(str(said["params"]["exceptionDetails"]))
            elif said["method"] == "Log.entryAdded" and said["params"]["entry"]["level"] == "error":
                self.problems.append(str(said["params"]["entry"]))

    async def open(self, url: str, *, width: int = 1280, height: int = 900, scheme: str = "light") -> None:
        feature = {"name": "prefers-color-scheme", "value": scheme}
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        await self.call("Emulation.setEmulatedMedia", features=[feature])
        await self.call("Page.navigate", url=url)

    async def value(self, expression: str) -> Any:
        """Of JavaScript, which may be a promise."""
        found = await self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        return found["result"].get("value")

    async def shows(self, text: str) -> None:
        """Once the page has it."""
        await wait_until(lambda: self._has(text), what=f"the page shows {text!r}")

    async def _has(self, text: str) -> bool:
        return text in (await self.value("document.body ? document.body.innerText : ''") or "")

    async def picture(self, path: Path) -> None:
        """The whole page."""
        found = await self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(  # noqa: ASYNC240 - nothing else goes on
            base64.b64decode(found["data"])
        )


@contextlib.contextmanager
def browser() -> Iterator[str]:
    """The address of its DevTools. Raises FileNotFoundError where there is no Chromium."""
    path = chromium()
    if path is None:
        raise FileNotFoundError("no Chromium is installed")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        told = Path(home) / "DevToolsActivePort"
        options = (*OPTIONS, f"--user-data-dir={home}", "about:blank")
        with subprocess.Popen(
            [path, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            try:
                lines = wait_until_sync(
                    lambda: told.read_text().splitlines() if told.exists() else None, what="Chromium is up"
                )
                yield f"http://127.0.0.1:{lines[0]}"
            finally:
                process.terminate()


@contextlib.asynccontextmanager
async def new_tab(browser_url: str) -> AsyncIterator[Tab]:
    """Closed afterwards."""
    async with contextlib.AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession(base_url=browser_url))
        async with session.put("/json/new?about:blank") as response:
            page = await response.json()
        socket = await session.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=0)
        stack.push_async_callback(socket.close)
        tab = Tab(socket)
        listening = asyncio.create_task(tab.listen())
        stack.callback(listening.cancel)
        for domain in ("Page", "Runtime", "Log"):
            await tab.call(f"{domain}.enable")
        yield tab
        await tab.call("Page.close")
