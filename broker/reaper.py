"""Recovery by whoever is alive: every API and worker process runs this loop; Redis lets one through per second."""

import asyncio
import logging
import random
from collections.abc import Callable, Iterable

from broker import policy, scripts
from broker.connection import Pipe
from broker.errors import RedisAway

log = logging.getLogger("headway.reaper")
EVERY_S = 1.0


async def reap_forever(pipe: Pipe, pools: Callable[[], Iterable[str]], *, limits: policy.Limits) -> None:
    """Reaps every pool about once a second until cancelled. Redis being away is waited out."""
    while True:
        await asyncio.sleep(EVERY_S * random.uniform(0.8, 1.2))
        for pool in pools():
            try:
                report = await pipe.run(scripts.reap(pool, limits, every_s=EVERY_S * 0.7))
            except RedisAway as error:
                log.debug("reap of %s put off: %s", pool, error)
                continue
            if report and (report[0] or report[2]):
                log.warning("pool %s: %d leases of dead workers, %d jobs expired", pool, report[0], report[2])
