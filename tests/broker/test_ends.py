"""However a job ends, whoever has to know is told once it is settled; others leave no trace."""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from broker import scripts
from broker.connection import Pipe
from broker.consumer import Consumer
from broker.ends import Ends, Who
from broker.job import Lease, heir_id
from broker.policy import Asking, Limits
from broker.producer import Producer
from broker.scripts import Ending, Return
from tests.broker.jobs import ERROR, LIMITS, POOL, submission

End = Callable[[Pipe, Lease], Awaitable[object]]
ENDS: dict[str, End] = {
    "succeeded": lambda pipe, lease: pipe.run(
        scripts.finish(lease.job_id, lease.token, ending=Ending(succeeded=True, data=b"{}"))
    ),
    "failed": lambda pipe, lease: pipe.run(
        scripts.finish(lease.job_id, lease.token, ending=Ending(succeeded=False, data=ERROR))
    ),
    "cancelled": lambda pipe, lease: pipe.run(scripts.cancel(lease.job_id)),
    "dead letter": lambda pipe, lease: pipe.run(
        scripts.release(
            lease.job_id, lease.token, given=Return("error", error=ERROR), limits=Limits(max_errors=0)
        )
    ),
}


@pytest.fixture
async def consumer(pipe: Pipe, redis_url: str) -> AsyncIterator[Consumer]:
    found = Consumer(pipe, redis_url, pool=POOL, asking=Asking("w1"), limits=LIMITS)
    yield found
    await found.close()


async def claimed(pipe: Pipe, consumer: Consumer, *, notify: str, heir: str = "") -> Lease:
    plan = "0 0 0 0" if heir else ""
    await Producer(pipe).submit(submission(notify=notify, heir=heir, plan=plan))
    [lease] = (await consumer.claim(1)).leases
    return lease


@pytest.mark.parametrize("end", ENDS)
async def test_end_is_noted_for_everybody_who_asked(pipe: Pipe, consumer: Consumer, end: str) -> None:
    lease = await claimed(pipe, consumer, notify="lc")
    for who in Who:
        assert await Ends(pipe, who).look([POOL]) == []
    await ENDS[end](pipe, lease)
    for who in Who:
        ends = Ends(pipe, who)
        assert await ends.look([POOL, "other"]) == [lease.job_id]
        await ends.drop([lease.job_id])
        assert await ends.look([POOL]) == []


async def test_job_that_is_cancelled_in_the_queue_is_noted(pipe: Pipe) -> None:
    job = submission(notify="l")
    await Producer(pipe).submit(job)
    await pipe.run(scripts.cancel(job.job_id))
    assert await Ends(pipe, Who.LIMITS).look([POOL]) == [job.job_id]
    assert await Ends(pipe, Who.CALLBACK).look([POOL]) == []
    await Ends(pipe, Who.LIMITS).drop([job.job_id])


@pytest.mark.parametrize("end", ENDS)
async def test_end_that_nobody_asked_for_is_not_noted(pipe: Pipe, consumer: Consumer, end: str) -> None:
    await ENDS[end](pipe, await claimed(pipe, consumer, notify=""))
    for who in Who:
        assert await Ends(pipe, who).look([POOL]) == []


async def test_first_pass_that_is_handed_on_is_no_end(pipe: Pipe, consumer: Consumer) -> None:
    job_id = submission().job_id
    lease = await claimed(pipe, consumer, notify="lc", heir=heir_id(job_id, "large"))
    ending = Ending(succeeded=False, data=b"", heir=lease.heir, why="engine_error")
    await pipe.run(scripts.finish(lease.job_id, lease.token, ending=ending))
    for who in Who:
        assert await Ends(pipe, who).look([POOL]) == []


async def test_redriven_dead_letter_is_noted_again(pipe: Pipe, consumer: Consumer) -> None:
    lease = await claimed(pipe, consumer, notify="c")
    await ENDS["dead letter"](pipe, lease)
    await Ends(pipe, Who.CALLBACK).drop([lease.job_id])
    again = await Producer(pipe).redrive(lease.job_id)
    await pipe.run(scripts.cancel(again))
    assert await Ends(pipe, Who.CALLBACK).look([POOL]) == [again]
    await Ends(pipe, Who.CALLBACK).drop([again])
