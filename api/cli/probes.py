"""When a part counts as ready. Each probe is asked again and again by `Supervisor.until` and keeps no state."""

from redis.exceptions import RedisError

from api.cli.listener import answers_200
from api.cli.parts import Part
from api.cli.supervisor import Probe
from broker.connection import Pipe, connect
from broker.errors import RedisAway
from broker.fleet import look_pool


async def alive(_: int) -> bool:
    """The supervisor asks only about processes that run."""
    return True


def redis_answers(url: str) -> Probe:
    """Its data is loaded."""

    async def probe(_: int) -> bool:
        client = connect(url, timeout_s=1.0)
        try:
            return bool(await client.ping())
        except (RedisError, OSError):
            return False
        finally:
            await client.aclose()

    return probe


def url_answers(url: str) -> Probe:
    async def probe(_: int) -> bool:
        return await answers_200(url)

    return probe


def worker_is_ready(pool: str, *, pipe: Pipe) -> Probe:
    """This very process says so in its record: its engine can take jobs."""

    async def probe(pid: int) -> bool:
        try:
            view = await look_pool(pipe, pool)
        except RedisAway:
            return False
        return any(worker.pid == pid for worker in view.ready_workers)

    return probe


def probe_of(part: Part, *, pipe: Pipe) -> Probe:
    if part.ready_pool:
        return worker_is_ready(part.ready_pool, pipe=pipe)
    if part.ready_path:
        return url_answers(f"{part.url}{part.ready_path}")
    return alive
