"""Hears aborts: a job that was cancelled or has expired while it ran. What is missed here, the next heartbeat tells."""

from collections.abc import Callable

from broker.ear import Ear, Heard
from broker.keys import PoolKeys
from broker.locate import locator


async def hear_aborts(url: str, pool: str, *, on_abort: Callable[[str, int], None]) -> None:
    """Calls `on_abort(job_id, token)` until cancelled; survives the loss of Redis."""

    def hear(heard: Heard) -> None:
        if heard.data is not None:
            verb, job_id, token = heard.data.decode().split(" ")
            if verb == "abort":
                on_abort(job_id, int(token))

    keys = PoolKeys(pool)
    ear = Ear(locator(url), keys.prefix, hear=hear)
    ear.want(keys.control)
    try:
        await ear.run()
    finally:
        await ear.close()
