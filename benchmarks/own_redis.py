"""A redis-server for one measure, as `headway up` runs it, on an empty folder and a free port."""

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from api.cli.redis_server import RedisServer, find_binary, free_port, wait_for


@contextmanager
def own_redis(*, aof: bool = True) -> Iterator[str]:
    """Its URL. The AOF is not rewritten meanwhile, for that would fall into one measure and not into another."""
    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer(binary=find_binary(), port=free_port(), directory=Path(folder))
        process = started(server, ["--auto-aof-rewrite-percentage", "0"] if aof else ["--appendonly", "no"])
        try:
            yield server.url
        finally:
            process.terminate()
            process.wait()


def started(server: RedisServer, options: list[str]) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen([*server.argv, *options], stdout=subprocess.DEVNULL)
    if not wait_for(server.url, timeout_s=10):
        process.kill()
        raise RuntimeError("redis-server does not answer")
    return process
