"""`headway up`: brings all parts up in one home directory, keeps them, and takes them down again in order.

The order: lock, leftovers, sockets, Redis, everything else at once; `up.json` and `ready` once each part answers.
"""

import asyncio
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from api.cli.announce import command_line, part_lines, pool_lines
from api.cli.home import Home, end
from api.cli.listener import listen, url_of
from api.cli.parts import Part, api_part, engine_parts, redis_part
from api.cli.probes import probe_of, redis_answers
from api.cli.redis_server import RedisServer, adopt, find_binary, free_port, port_is_free, stable_port
from api.cli.supervisor import PartFailed, Supervisor
from api.keyring import Keyring, check_door
from broker.config import Config, load_config
from broker.connection import Pipe, check_servers
from broker.errors import BrokerError
from broker.settings import Settings, child_environment, load_settings

READY_S = 180.0  # an engine may have to load its weights
REDIS_READY_S = 600.0  # a large AOF takes a while to read
OPTIONAL_READY_S = 30.0
FLOWER_PORT = 5555  # Flower's own default
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """The first signal asks to stop, the second to hand running jobs back, the third not to wait for anything."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()
        self.kill = asyncio.Event()

    def listen(self) -> None:
        loop = asyncio.get_running_loop()
        for name in SIGNALS:
            loop.add_signal_handler(name, self._note)

    def _note(self) -> None:
        events = (self.stop, self.hurry, self.kill)
        next((event for event in events if not event.is_set()), self.kill).set()


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
        """Until it is asked to stop. Raises ConfigError, PartFailed, RedisAway, RedisUnsuitable."""
        if self.settings.flower_port:
            listen("127.0.0.1", self.settings.flower_port, setting="HEADWAY_FLOWER_PORT").close()
        with listen(self.settings.host, self.settings.port) as listener:
            rising = asyncio.create_task(self._rise(listener))
            try:
                await first_of(rising, interrupts.stop.wait())
                if rising.done():
                    rising.result()
                    await interrupts.stop.wait()
            finally:
                await cancel(rising)
                await self._fall(interrupts)
                self.home.up_file.unlink(missing_ok=True)

    async def _fall(self, interrupts: Interrupts) -> None:
        if self._ready:
            self.say(
                f"stopping: running jobs get up to {self.settings.drain_s:g} s to finish (HEADWAY_DRAIN_S); "
                "a second Ctrl-C hands them back to the queue at once"
            )
        falling = asyncio.create_task(self.supervisor.stop())
        await first_of(falling, interrupts.hurry.wait())
        if not falling.done():
            self.supervisor.hurry()
            await first_of(falling, interrupts.kill.wait())
        await cancel(falling)

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
        info = await check_servers(self.settings.redis_url)
        if not own_redis:
            self.say(f"  Redis {info['redis_version']} of HEADWAY_REDIS_URL")
        pipe = Pipe(self.settings.redis_url)
        try:
            await check_door(self.settings, self.config, pipe=pipe)  # refuses here what the API would refuse
            await self._start_rest(listener, pipe=pipe)
        finally:
            await pipe.close()
        self.supervisor.settle()
        notices = await pool_lines(self.config)
        self._ready = True
        self._record()
        for line in (*part_lines(self.supervisor.running.values(), home=self.home), *notices, command_line()):
            if line:
                self.say(line)
        self.say("ready")

    async def _start_redis(self) -> Part:
        binary = find_binary()
        self.say(f"  redis-server {adopt(self.home.redis, binary=binary)}: {binary}")
        server = RedisServer(
            binary=binary,
            port=stable_port(self.home.redis),
            directory=self.home.redis,
            appendfsync=self.settings.appendfsync,
        )
        part = redis_part(server)
        self.supervisor.env = child_environment(self.settings)
        self.supervisor.start(part)
        await self.supervisor.until(part, redis_answers(server.url), timeout_s=REDIS_READY_S)
        return part

    async def _start_rest(self, listener: socket.socket, *, pipe: Pipe) -> None:
        url = url_of(listener, host=self.settings.host)
        flower_port = self.settings.flower_port or (FLOWER_PORT if port_is_free(FLOWER_PORT) else free_port())
        parts = engine_parts(self.settings, self.config, flower_port=flower_port)
        parts.append(api_part(url, self.config, listener=listener.fileno()))
        for part in parts:
            self.supervisor.start(part)
        for part in sorted(parts, key=lambda part: part.optional):
            await self._until_ready(part, pipe=pipe)

    async def _until_ready(self, part: Part, *, pipe: Pipe) -> None:
        timeout_s = OPTIONAL_READY_S if part.optional else READY_S
        try:
            await self.supervisor.until(part, probe_of(part, pipe=pipe), timeout_s=timeout_s)
        except PartFailed:
            if not part.optional:
                raise
            self.say(f"{part.name} is not ready (log: {self.home.log(part.name)}); the rest does without it")

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
    if not settings.files_url.startswith("file:"):
        from broker.storage import check_scheme  # which loads fsspec

        check_scheme(settings.files_url)
    config = load_config(settings)
    Keyring(settings, config)  # wrong keys are said before anything runs
    up = Up(settings, config, say=say)
    with up.home.in_use(), up.home.lock():
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
