# /// script
# [tool.peers]
# python = "../.venv/bin/python"
# ///
"""Headway's queue as a peer of the job queue harness, which is given this file by its path.

The producer and the worker are the broker's own; only the engine is missing: a job's body runs in the event loop. So
every job is leased, run and finished under its token, and comes back by the reaper if its worker dies.
"""

import asyncio
import logging
import os
import time
from collections.abc import Iterable

import bench  # type: ignore[import-not-found]  # the harness puts itself on the path

from broker.connection import Pipe
from broker.consumer import Consumer
from broker.job import Forecast, Lease, ServiceClass, Submission, new_job_id
from broker.policy import Asking, Limits
from broker.producer import Producer
from broker.reaper import reap_forever
from broker.scripts import Ending
from workers.heartbeat import Heartbeat

log = logging.getLogger("headway.peer")
POOL = "peers"
SLOTS = int(os.environ.get("HEADWAY_SLOTS", "128"))
CLAIM = int(
    os.environ.get("HEADWAY_CLAIM", "32")
)  # jobs per claim: the next one is under way while these run
DONE = Ending(succeeded=True, data=b"")


def submission(endpoint: str, payload: str) -> Submission:
    """Batch work that is polled for a short while after its end."""
    forecast = Forecast(prompt_tokens=1, output_tokens=1, run_s=0.0)
    return Submission(
        new_job_id(POOL),
        ServiceClass.P2,
        endpoint,
        payload.encode(),
        forecast,
        deadline_s=3600.0,
        retain_s=1.0,
    )


class Worker:
    """Claims as many jobs as it has free slots, a bounded number at a time; what has run meanwhile is finished at once."""

    def __init__(self, url: str) -> None:
        name, self.limits = f"worker{os.getpid()}", Limits(lease_s=bench.LEASE_S)
        self.pipe = Pipe(url)
        asking = Asking(name, self.limits.lease_s)
        self.consumer = Consumer(self.pipe, url, pool=POOL, asking=asking, limits=self.limits)
        self.heartbeat = Heartbeat(url, pool=POOL, worker_id=name, lease_s=self.limits.lease_s)
        self.running: dict[str, asyncio.Task[None]] = {}
        self.ran: list[Lease] = []
        self.has_run = asyncio.Event()
        self.room = asyncio.Event()

    async def run(self) -> None:
        self.heartbeat.start(lambda: b"{}", self.lost)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(reap_forever(self.pipe, lambda: [POOL], limits=self.limits))
            tasks.create_task(self.claim())
            tasks.create_task(self.finish())

    async def claim(self) -> None:
        while True:
            if len(self.running) >= SLOTS:
                self.room.clear()
                await self.room.wait()
            asked_at = time.monotonic()
            claimed = await self.consumer.claim(min(CLAIM, SLOTS - len(self.running)))
            self.heartbeat.hold(claimed.leases, asked_at)
            for lease in claimed.leases:
                self.running[lease.job_id] = asyncio.create_task(self.work(lease))
            if not claimed.more:
                await asyncio.sleep(0)  # the jobs first
                await self.consumer.wait(claimed.next_due_s or 60.0)

    async def work(self, lease: Lease) -> None:
        payload = lease.body.decode()
        if lease.endpoint == "hold":
            await bench.hold_async(payload)
        else:
            bench.noop(payload)
        self.ran.append(lease)
        self.has_run.set()

    async def finish(self) -> None:
        while True:
            await self.has_run.wait()
            self.has_run.clear()
            leases, self.ran = self.ran, []
            kept = await self.consumer.finish_many([(lease, DONE) for lease in leases])
            for lease, ours in zip(leases, kept, strict=True):
                self.leave(lease.job_id)
                if not ours:
                    log.warning("%s was taken away before it finished", lease.job_id)

    def lost(self, job_ids: Iterable[str]) -> None:
        for job_id in job_ids:
            if task := self.running.get(job_id):
                task.cancel()
                self.leave(job_id)

    def leave(self, job_id: str) -> None:
        self.heartbeat.drop(job_id)
        self.running.pop(job_id, None)
        self.room.set()


class Headway(bench.Peer):  # type: ignore[misc]
    settings = {  # noqa: RUF012 - as the harness has it
        "pool": f"asyncio (uvloop), {SLOTS} slots, at most {CLAIM} jobs per claim",
        "at_least_once": "leases with fencing tokens; what has run is finished at once, several jobs per script",
        "results": "status kept for 1 s",
        "lease": f"{bench.LEASE_S} s, renewed three times per lease by a thread; reaped every second",
        "bulk": "Producer.submit_bulk",
    }

    async def open(self) -> None:
        self.pipe = Pipe(bench.redis_url())
        self.producer = Producer(self.pipe)

    async def send(self, payload: str) -> None:
        await self.producer.submit(submission("noop", payload))

    async def send_many(self, payloads: list[str]) -> None:
        await self.producer.submit_bulk([submission("noop", payload) for payload in payloads])

    async def send_hold(self, payload: str) -> None:
        await self.producer.submit(submission("hold", payload))

    async def close(self) -> None:
        await self.pipe.close()

    def work(self) -> None:
        bench.run(Worker(bench.redis_url()).run())


if __name__ == "__main__":
    bench.main(Headway())
