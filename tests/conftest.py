"""A real redis-server per test process, an empty one per test, and a check that no test leaves keys behind."""

import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import redis

from api.cli.redis_server import RedisServer, find_binary, free_port, wait_for
from broker.connection import Pipe
from broker.errors import ConfigError
from broker.keys import is_permanent
from tests.tcp_proxy import TcpProxy

ATTEMPTS = 3  # a free port may be taken by somebody else before redis-server binds it


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One process per xdist worker. HEADWAY_TEST_REDIS_SERVER names another program than the one on PATH."""
    try:
        binary = find_binary(os.environ.get("HEADWAY_TEST_REDIS_SERVER"))
    except ConfigError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    server, process = start_redis(binary, tmp_path_factory.mktemp("redis"))
    yield server
    process.terminate()
    process.wait(timeout=10)


def start_redis(binary: Path, directory: Path) -> tuple[RedisServer, subprocess.Popen[bytes]]:
    """A running server on a free port. For tests that need one of their own, to kill or to configure."""
    for _ in range(ATTEMPTS):
        server = RedisServer(binary=binary, port=free_port(), directory=directory)
        with (directory / "log").open("ab") as log:
            process = subprocess.Popen(server.argv, stdout=log, stderr=log)
        if wait_for(server.url, timeout_s=10) and process.poll() is None:
            return server, process
        process.kill()
        process.wait()
    raise AssertionError(f"redis-server did not start: {(directory / 'log').read_text()}")


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """An empty database."""
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
        client.script_flush()
    return redis_server.url


@pytest.fixture
async def proxy(redis_server: RedisServer, redis_url: str) -> AsyncIterator[TcpProxy]:
    """Before that database: `redis://127.0.0.1:<its port>/0`."""
    async with TcpProxy.before("127.0.0.1", redis_server.port) as proxy:
        yield proxy


@pytest.fixture
async def pipe(redis_url: str) -> AsyncIterator[Pipe]:
    pipe = Pipe(redis_url)
    yield pipe
    await pipe.close()


@pytest.fixture(autouse=True)
def no_key_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every key has a TTL or is on the list of permanent keys (design, invariant 4)."""
    if "redis_url" not in request.fixturenames:
        yield
        return
    url: str = request.getfixturevalue("redis_url")
    yield
    with redis.Redis.from_url(url, decode_responses=True) as client:
        keys = [key for key in client.scan_iter(count=1000) if not is_permanent(key)]
        leaked = [key for key in keys if client.ttl(key) == -1]
    assert not leaked, f"keys without a TTL: {leaked}"
