"""Hears aborts: a job that was cancelled or has expired while it ran. What is missed here, the next heartbeat tells."""

import asyncio
from collections.abc import Callable

from broker.ear import Ear, Heard
from broker.keys import PoolKeys
from broker.locate import locator
from broker.served import Served

LOOK_S = 1.0  # for queues that the worker has begun to serve


async def hear_aborts(
    url: str,
    pool: str | Served,
    *,
    on_abort: Callable[[str, int], None],
    on_call: Callable[[str], None] = lambda _: None,
) -> None:
    """Calls `on_abort(job_id, token)` and `on_call(worker_id)` until cancelled; survives the loss of Redis.

    `pool`: the queues of the worker, or the name of the only one.
    """

    def hear(heard: Heard) -> None:
        if heard.data is not None:
            verb, subject, token = heard.data.decode().split(" ")
            if verb == "abort":
                on_abort(subject, int(token))
            elif verb == "call":
                on_call(subject)

    served = Served([pool]) if isinstance(pool, str) else pool
    ears = _Ears(url, hear)
    try:
        while True:
            for queue in served.queues:
                ears.listen(queue)
            await asyncio.sleep(LOOK_S)
    finally:
        await ears.close()


class _Ears:
    """One subscription, or in a cluster one for each queue."""

    def __init__(self, url: str, hear: Callable[[Heard], None]) -> None:
        self._locator = locator(url)
        self._hear = hear
        self._ears: dict[str, tuple[Ear, asyncio.Task[None]]] = {}

    def listen(self, queue: str) -> None:
        """Again for the same queue: nothing."""
        keys = PoolKeys(queue)
        name = queue if self._locator.topology.kind == "cluster" else ""
        if name not in self._ears:
            ear = Ear(self._locator, keys.prefix, hear=self._hear)
            self._ears[name] = (ear, asyncio.create_task(ear.run()))
        self._ears[name][0].want(keys.control)

    async def close(self) -> None:
        for _, task in self._ears.values():
            task.cancel()
        await asyncio.gather(*(task for _, task in self._ears.values()), return_exceptions=True)
        await asyncio.gather(*(ear.close() for ear, _ in self._ears.values()))
