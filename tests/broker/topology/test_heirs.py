"""A successor lies in another slot: its reader, its poller and its canceller find it there, on every kind of Redis."""

import asyncio
from dataclasses import replace

from broker.consumer import Consumer
from broker.fleet import WorkerRecord
from broker.heirs import Heirs, Plan
from broker.job import Status, heir_id
from broker.policy import Asking
from broker.scripts import Beat, Ending, renew
from predictor.estimator import SimpleEstimator
from tests.broker.stream_ends import Writer, payloads, read
from tests.broker.topology.conftest import LIMITS, Queue

ANSWER = Ending(succeeded=True, data=b'{"text":"from the large one"}')


async def test_a_reader_goes_on_with_the_successor_in_another_queue(queue: Queue) -> None:
    job = queue.submission()
    large = f"{queue.pool}-large"
    job = replace(job, heir=heir_id(job.job_id, large), plan=str(Plan()))
    asking = Asking("w-large")
    record = WorkerRecord("w-large", large, "e", "m", 2, 0, "ready", 1, "h", home=large)
    await queue.pipe.run(renew(large, Beat("w-large", record.dump(), (), 10.0)))
    worker = Consumer(queue.pipe, queue.place.url, pool=large, asking=asking, limits=LIMITS)
    heirs = Heirs(queue.pipe, queue.producer, forecast=SimpleEstimator().forecast)
    with queue.hub.mailbox(job.job_id) as box:
        await queue.producer.submit(job)
        reading = asyncio.create_task(read(queue.pipe, box))
        [first] = (await queue.worker.claim(1)).leases
        assert await heirs.submit(first, {}, in_time=True)
        await queue.worker.finish(first, Ending(False, b"", heir=job.heir, why="length"))
        [second] = (await worker.claim(1)).leases
        assert second.token > first.token
        writer = Writer(worker, second)
        await writer.write(2)
        await worker.finish(second, ANSWER)
        messages = await reading
    assert len(payloads(messages)) == 2
    assert (messages[-1].job_id, messages[-1].data) == (job.heir, ANSWER.data)
    found = await queue.producer.get(job.job_id)
    assert (found.job_id, found.status) == (job.heir, Status.SUCCEEDED)
    await worker.leave()
    await worker.close()
