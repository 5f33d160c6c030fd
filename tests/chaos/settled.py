"""What must be true of a Headway that has been left alone after its troubles: nothing held, nothing left, nothing open."""

import asyncio
import time
from typing import Any

import aiohttp

from broker.keys import PoolKeys, is_permanent
from tests.chaos.client import Client
from tests.chaos.judge import Finding
from tests.chaos.system import POOLS, System
from tests.chaos.traffic import SHORT

QUIET_S = 90.0
WORK = (
    "ready:0",
    "ready:1",
    "ready:2",
    "ready:3",
    "aged:0",
    "aged:1",
    "aged:2",
    "aging",
    "delayed",
)
HELD = (*WORK, "leases", "deadlines", "running")
MOST_RSS = 400 << 20


async def until_settled(this: System, client: Client, http: aiohttp.ClientSession) -> list[Finding]:
    """What is still wrong when there has been time enough. A little traffic goes on, for it closes breakers."""
    end, wrong = time.monotonic() + QUIET_S, list[str]()
    while time.monotonic() < end:
        await asyncio.gather(*(client.chat(pool, key=True, **SHORT) for pool in (*POOLS.values(),) * 4))
        wrong = [*await _held(this), *await _open_breakers(this, http)]
        if not wrong:
            break
        await asyncio.sleep(1)
    wrong += await _leaks(this) + await _mended(this)
    wrong += [f"{name} has {rss >> 20} MB" for name, rss in this.rss.items() if rss > MOST_RSS]
    return [Finding("not_settled", text, "") for text in wrong]


async def memory_mb(this: System, *, drop: bool = False) -> float:
    """Redis' own data. `drop`: as it would be when all that has a TTL has expired."""
    async with this.redis() as client:
        while drop:
            keys = [key async for key in client.scan_iter(count=1000) if await client.ttl(key) >= 0]
            if not keys:
                break
            await client.unlink(*keys)
        return float((await client.info("memory"))["used_memory_dataset"]) / 2**20


async def _held(this: System) -> list[str]:
    keys = [PoolKeys(pool).named(name) for pool in sorted(set(POOLS.values())) for name in HELD]
    async with this.redis() as client:
        held = {key: await _members(client, key) for key in keys if await client.exists(key)}
    return [f"{key} holds {members[:3]}" for key, members in held.items() if members]


async def _members(client: Any, key: str) -> list[Any]:
    if await client.type(key) == "hash":
        return [pair for pair in (await client.hgetall(key)).items() if pair[1] != "0"]
    members: list[Any] = await client.zrange(key, 0, 9)
    return members


async def _open_breakers(this: System, http: aiohttp.ClientSession) -> list[str]:
    async with http.get(f"{this.urls['api-0']}/v1/fleet") as response:
        if response.status != 200:
            return [f"/v1/fleet answers {response.status}: {await response.text()}"]
        pools = (await response.json())["pools"]
    workers = [worker for pool in pools for worker in pool["workers"]]
    found = [f"breaker of {w['id']} is {w['breaker']}" for w in workers if w["breaker"] != "closed"]
    found += [f"{w['id']} is {w['state']}" for w in workers if w["state"] != "ready"]
    return found + ([] if len(workers) == len(POOLS) else [f"{len(workers)} workers"])


async def _leaks(this: System) -> list[str]:
    async with this.redis() as client:
        keys = [key async for key in client.scan_iter(count=1000) if not is_permanent(key)]
        return [f"{key} has no TTL" for key in keys if await client.ttl(key) == -1]


async def _mended(this: System) -> list[str]:
    """The scripts leave nothing for the reaper to mend."""
    async with this.redis() as client:
        found = []
        for pool in set(POOLS.values()):
            stats = await client.hgetall(PoolKeys(pool).named("stats"))
            found += [f"{pool}: {n} {name}" for name, n in stats.items() if name.startswith("reconciled:")]
        return found
