"""Keeps parts running: starts them, starts those that die again, stops all in order. One per `headway up`.

Its owner asks `until` for each part at the start; from `settle` on it never gives up on a part, but for a worker that
an operator has drained. Between events it sleeps in the kernel: no polling.
"""

import asyncio
import time
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from api.cli.child import Backoff, describe_exit, kill_group, spawn, stop
from api.cli.home import Home, Identity, tail
from api.cli.parts import STOP_ORDER, Part
from broker.errors import BrokerError
from broker.steering import DISMISSED

START_ATTEMPTS = 3  # a part that has never been well is not tried for ever
PROBE_S = 0.05

Probe = Callable[[int], Awaitable[bool]]


class PartFailed(BrokerError):
    """A part would not start. The message carries the end of its log."""


@dataclass(slots=True)
class Running:
    """A started part. `identity` changes with every restart."""

    part: Part
    process: Process
    identity: Identity


class Supervisor:
    """`report` gets one line per event, `changed` is called when the set of running processes has changed."""

    def __init__(self, home: Home, *, report: Callable[[str], None], changed: Callable[[], None]) -> None:
        self.env: Mapping[str, str] = {}
        self.running: dict[str, Running] = {}
        self._home = home
        self._report = report
        self._changed = changed
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._settled = False
        self._stopping = False
        self._failure: PartFailed | None = None
        self._missed: dict[str, PartFailed] = {}  # optional parts that will not start

    def start(self, part: Part) -> None:
        self._home.fresh_log(part.name)
        self._keepers[part.name] = asyncio.create_task(self._keep(part), name=part.name)

    def settle(self) -> None:
        """All parts have been well: from now on each is restarted for ever."""
        self._settled = True

    async def until(self, part: Part, probe: Probe, *, timeout_s: float) -> None:
        """Waits until `probe`, given the part's pid, says yes. Raises PartFailed if the part cannot get there."""
        end = time.monotonic() + timeout_s
        while True:
            running = self.running.get(part.name)
            if failure := self._failure or self._missed.get(part.name):
                raise failure
            if running and running.process.returncode is None and await probe(running.identity.pid):
                return
            if time.monotonic() > end:
                raise self._failed(part, f"was not ready within {timeout_s:g} s")
            await asyncio.sleep(PROBE_S)

    async def _keep(self, part: Part) -> None:
        backoff = Backoff()
        while not self._stopping:
            began = time.monotonic()
            end = await self._run_once(part)
            if self._stopping:
                return
            if self._is_dismissed(part):
                self._report(f"{part.name} was drained by an operator and has left; it is not started again")
                del self.running[part.name]
                self._changed()
                return
            wait_s = backoff.next_s(time.monotonic() - began)
            given_up = not self._settled and backoff.quick_deaths >= START_ATTEMPTS
            if given_up and not part.optional:
                self._failure = self._failed(part, f"{end}, {START_ATTEMPTS} times in a row")
                return
            if part.optional:
                self._do_without(part, end, told=backoff.quick_deaths > 1)
            else:
                log = self._home.log(part.name)
                self._report(f"{part.name} {end}; starting it again in {wait_s:.1f} s (log: {log})")
            await asyncio.sleep(wait_s)

    def _is_dismissed(self, part: Part) -> bool:
        running = self.running.get(part.name)
        return part.kind == "worker" and running is not None and running.process.returncode == DISMISSED

    def _do_without(self, part: Part, end: str, *, told: bool) -> None:
        self._missed.setdefault(part.name, self._failed(part, end))
        if not told:
            log = self._home.log(part.name)
            self._report(
                f"{part.name} {end}; it is started again and again, the rest does without it (log: {log})"
            )

    async def _run_once(self, part: Part) -> str:
        """How it ended."""
        try:
            process = await spawn(part, env=self.env, log=self._home.log(part.name))
        except OSError as error:
            return f"cannot be started ({error})"
        self.running[part.name] = Running(part, process, Identity.of(process.pid))
        self._changed()
        code = await process.wait()
        kill_group(process.pid)
        return describe_exit(code)

    def _failed(self, part: Part, what: str) -> PartFailed:
        log = self._home.log(part.name)
        return PartFailed(f"{part.name} {what}. The end of {log}:\n{tail(log)}")

    def hurry(self) -> None:
        """A second signal to the workers that still drain: they hand their jobs back at once."""
        for running in self.running.values():
            if running.part.kind == "worker" and running.process.returncode is None:
                running.process.terminate()

    async def stop(self) -> None:
        """In order, each with its grace. Cancelled, as by a third Ctrl-C: kill what is left."""
        self._stopping = True
        try:
            for kinds in STOP_ORDER:
                stage = [
                    r for r in self.running.values() if r.part.kind in kinds and r.process.returncode is None
                ]
                if stage:
                    self._report(f"stopping {', '.join(r.part.name for r in stage)}")
                await asyncio.gather(*(stop(r.process, grace_s=r.part.grace_s) for r in stage))
        finally:
            for running in self.running.values():
                if running.process.returncode is None:
                    kill_group(running.process.pid)
            for keeper in self._keepers.values():
                keeper.cancel()
            await asyncio.gather(*(running.process.wait() for running in self.running.values()))
            await asyncio.gather(*self._keepers.values(), return_exceptions=True)
