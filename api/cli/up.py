"""`headway up`: brings all parts up in one home directory, keeps them, and takes them down again in order.

The order: lock, leftovers, socket, Redis, everything else at once; `up.json` and `ready` once each part answers.
"""

import asyncio
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from api.cli.home import Home, end
from api.cli.listener import listen, url_of
from api.cli.parts import Part, api_part, engine_parts, redis_part
from api.cli.probes import probe_of, redis_answers
from api.cli.redis_server import RedisServer, find_binary, free_port, port_is_free, stable_port
from api.cli.supervisor import Supervisor
from broker.config import Config, load_config
from broker.connection import Pipe, check_server, connect
from broker.errors import BrokerError
from broker.settings import Settings, child_environment, load_settings

READY_S = 180.0  # an engine may have to load its weights
REDIS_READY_S = 600.0  # a large AOF takes a while to read
FLOWER_PORT = 5555  # Flower's own default
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """The first signal asks to stop, the second one not to wait for anything."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()

    def listen(self) -> None:
        loop = asyncio.get_running_loop()
        for name in SIGNALS:
            loop.add_signal_handler(name, self._note)

    def _note(self) -> None:
        (self.hurry if self.stop.is_set() else self.stop).set()


class Up:
    """One run. `say` prints a line for the user."""

    def __init__(self, settings: Settings, config: Config, *, say: Callable[[str], None]) -> None:
        self.settings = settings
        self.config = config
        self.home = Home(settings.home)
        self.say = say
        self.supervisor = Supervisor(self.home, report=say, changed=self._record)
        self._ready = False

    async def run(self, interrupts: Interrupts) -> None:
        """Until it is asked to stop. Raises ConfigError, PartFailed, RedisUnsuitable."""
        with listen(self.settings.host, self.settings.port) as listener:
            rising = asyncio.create_task(self._rise(listener))
            try:
                await first_of(rising, interrupts.stop.wait())
                if rising.done():
                    rising.result()
                    await interrupts.stop.wait()
            finally:
                await cancel(rising)
                falling = asyncio.create_task(self.supervisor.stop())
                await first_of(falling, interrupts.hurry.wait())
                await cancel(falling)
                self.home.up_file.unlink(missing_ok=True)

    async def _rise(self, listener: socket.socket) -> None:
        own_redis = await self._start_redis() if self.settings.redis_is_own else None
        decided: dict[str, Any] = {
            name: getattr(self.settings, name) for name in self.settings.model_fields_set
        }
        decided["port"] = listener.getsockname()[1]
        if own_redis:
            decided["redis_url"] = own_redis.url
        self.settings = load_settings(**decided)
        self.supervisor.env = child_environment(self.settings)
        client = connect(self.settings.redis_url)
        try:
            await check_server(client)
        finally:
            await client.aclose()
        await self._start_rest(listener)
        self.supervisor.settle()
        self._ready = True
        self._record()
        self._announce()

    async def _start_redis(self) -> Part:
        server = RedisServer(
            binary=find_binary(),
            port=stable_port(self.home.redis),
            directory=self.home.redis,
            appendfsync=self.settings.appendfsync,
        )
        part = redis_part(server)
        self.supervisor.env = child_environment(self.settings)
        self.supervisor.start(part)
        await self.supervisor.until(part, redis_answers(server.url), timeout_s=REDIS_READY_S)
        return part

    async def _start_rest(self, listener: socket.socket) -> None:
        url = url_of(listener, host=self.settings.host)
        flower_port = self.settings.flower_port or (FLOWER_PORT if port_is_free(FLOWER_PORT) else free_port())
        parts = engine_parts(self.settings, self.config, flower_port=flower_port)
        parts.append(api_part(url, self.config, listener=listener.fileno()))
        for part in parts:
            self.supervisor.start(part)
        pipe = Pipe(self.settings.redis_url)
        try:
            for part in parts:
                await self.supervisor.until(part, probe_of(part, pipe=pipe), timeout_s=READY_S)
        finally:
            await pipe.close()

    def _record(self) -> None:
        """`up.json`, from the moment that everything is ready; again whenever a part has a new pid."""
        if not self._ready:
            return
        parts = [
            {
                "name": running.part.name,
                "kind": running.part.kind,
                "pid": running.identity.pid,
                "started": running.identity.started,
                "url": running.part.url,
            }
            for running in self.supervisor.running.values()
        ]
        api = next({"url": part["url"], "pid": part["pid"]} for part in parts if part["kind"] == "api")
        self.home.write_up({"api": api, "parts": parts})

    def _announce(self) -> None:
        width = max(len(name) for name in self.supervisor.running)
        for running in self.supervisor.running.values():
            part = running.part
            self.say(f"  {part.name:<{width}}  pid {running.identity.pid:<7}  {part.url or ''}".rstrip())
        embedded = [model.pool for model in self.config.models if model.embedded]
        if embedded:
            self.say(
                f"  pools {', '.join(embedded)}: the embedded demonstration model; name real engines in headway.yaml"
            )
        self.say(f"  logs in {self.home.log('*').parent}")
        self.say("ready")


async def first_of(task: "asyncio.Task[None]", event: Coroutine[Any, Any, Any]) -> None:
    """Returns when either has ended, without taking the task's result."""
    waiting = asyncio.create_task(event)
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()


async def cancel(task: "asyncio.Task[None]") -> None:
    """Ends it if it has not ended, and waits for it. Its error, if it had one, is the caller's to look at."""
    task.cancel()
    await asyncio.wait({task})


def run_up(*, say: Callable[[str], None]) -> None:
    """Raises BrokerError with a message for the user."""
    settings = load_settings()
    up = Up(settings, load_config(settings), say=say)
    up.home.prepare()
    with up.home.lock():
        end(up.home.leftovers())
        up.home.up_file.unlink(missing_ok=True)
        asyncio.run(_until_signal(up))


async def _until_signal(up: Up) -> None:
    interrupts = Interrupts()
    interrupts.listen()
    await up.run(interrupts)


def main() -> None:
    """What `headway up` becomes: this process lives as long as Headway, so it loads no more than it needs."""
    try:
        run_up(say=lambda line: print(line, flush=True))  # noqa: T201 - the command's output
    except BrokerError as error:
        sys.exit(f"headway: {error}")


if __name__ == "__main__":
    main()
