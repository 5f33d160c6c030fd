"""The live page in a headless Chromium: what it shows, how it is steered by keyboard, with a key, and on a phone."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest

from broker import fleet, notable, scripts
from broker.fleet import LoadMeans, WorkerRecord
from broker.notable import Notable
from broker.settings import Settings
from tests.api.harness import ScriptedWorker, Served, serve
from tests.browser import Tab, browser, chromium, new_tab
from tests.conditions import wait_until

pytestmark = pytest.mark.skipif(chromium() is None, reason="no Chromium is installed")
CHAT = {"model": "small", "messages": [{"role": "user", "content": "Hi"}]}
RECORD = WorkerRecord("w1", "small", "vllm", "llama", 8, 8, "ready", 1, "host", kv_used_share=0.5)


@pytest.fixture(scope="module")
def chromium_url() -> Iterator[str]:
    with browser() as url:
        yield url


@pytest.fixture
async def tab(chromium_url: str) -> AsyncIterator[Tab]:
    async with new_tab(chromium_url) as opened:
        yield opened
        assert opened.problems == []


async def announce(served: Served, record: WorkerRecord, *, ttl_s: float = 60.0) -> None:
    await fleet.announce_pool(served.pipe, record.pool)
    beat = scripts.Beat(record.worker_id, record.dump(), (), ttl_s)
    await served.pipe.run(scripts.renew(record.pool, beat))


async def test_it_shows_the_fleet_an_uneven_pool_and_a_jobs_story(
    served: Served, worker: ScriptedWorker, tab: Tab
) -> None:
    job_id = (await served.http.post("/v1/jobs", json=CHAT | {"class": "P1"})).json()["id"]
    await worker.finish(await worker.claim(), b'{"choices":[]}')
    await notable.note_slow(
        served.pipe,
        [Notable(job_id, "P1", "w1", "succeeded", 2.0, 3.0, 4.0, 1_700_000_000.0)],
        queue="small",
    )
    loaded = LoadMeans(1.0, 0.5, 80.0)
    slow = replace(RECORD, jobs={"P2": [9.0, 8.0, 8.0, 7.0]}, predicted_s=32.0, lately=loaded, minute=loaded)
    idle = LoadMeans(0.0, 0.0, 0.0)
    await announce(served, slow)
    await announce(served, replace(RECORD, worker_id="w2", busy_slots=0, lately=idle, minute=idle))
    await tab.open(served.url)
    await tab.shows("Uneven: w1")
    await tab.shows("8 of 8")
    assert (
        await tab.value("document.querySelectorAll('article[aria-label=\"pool small\"] .tile').length") == 3
    )
    assert await tab.value("document.querySelector('svg[role=img]').getAttribute('aria-label')")
    await tab.value(f"document.querySelector('[aria-label=\"Story of {job_id}\"]').focus()")
    for kind in ("keyDown", "keyUp"):
        await tab.call("Input.dispatchKeyEvent", type=kind, key="Enter", text="\r", windowsVirtualKeyCode=13)
    await tab.shows("from its own queue")
    for kind in ("keyDown", "keyUp"):
        await tab.call("Input.dispatchKeyEvent", type=kind, key="Escape", windowsVirtualKeyCode=27)
    await wait_until(lambda: tab.value("!document.getElementById('story').open"), what="Escape closes it")


async def test_a_worker_that_vanishes_stays_to_be_seen_and_an_empty_pool_says_so(
    served: Served, tab: Tab
) -> None:
    await announce(served, RECORD)
    await tab.open(served.url, scheme="dark")
    await tab.shows("1 of 1 workers ready")
    await tab.shows("No worker serves this pool.")  # the other one
    await served.pipe.command("DEL", "hw:{small}:worker:w1")
    await tab.shows("gone")
    await tab.shows("0 of 0 workers ready")


async def test_on_a_phone_nothing_is_wider_than_the_screen(
    served: Served, worker: ScriptedWorker, tab: Tab
) -> None:
    assert worker.pool == "small"
    await tab.open(served.url, width=390, height=844)
    await tab.shows("workers ready")
    assert await tab.value("document.documentElement.scrollWidth") == 390


async def test_where_keys_are_on_it_asks_for_one(redis_url: str, chromium_url: str) -> None:
    settings = Settings(redis_url=redis_url, api_keys=("secret-1",))
    async with serve(settings) as served, new_tab(chromium_url) as tab:
        await tab.open(served.url)
        await tab.shows("An API key is needed")
        await tab.value("document.getElementById('key').value = 'wrong'")
        await tab.value("document.querySelector('#login button').click()")
        await tab.shows("not known here")
        await tab.value("document.getElementById('key').value = 'secret-1'")
        await tab.value("document.querySelector('#login button').click()")
        await tab.shows("workers ready")
