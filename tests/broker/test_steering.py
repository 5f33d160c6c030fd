"""What operators wish of pools and workers is kept where it is read, and only of those that there are."""

import pytest

from broker import scripts
from broker.connection import Pipe
from broker.consumer import Consumer
from broker.errors import UnknownWorker
from broker.fleet import look
from broker.keys import PoolKeys
from broker.producer import Producer
from broker.scripts import Beat
from broker.steering import Wish, steer_pool, steer_worker
from tests.broker.jobs import KEYS, POOL, Backdoor, submission

BEAT = Beat("w1", b"{}", (), 10.0)


async def wish_of(pipe: Pipe, beat: Beat = BEAT) -> str:
    return str((await pipe.run(scripts.renew(POOL, beat)))[0].decode())


async def test_heartbeat_brings_the_wish_until_it_is_taken_back(pipe: Pipe) -> None:
    assert await wish_of(pipe) == ""
    for wish in (Wish.PAUSE, Wish.DRAIN):
        await steer_worker(pipe, [POOL], worker_id="w1", wish=wish)
        assert [await wish_of(pipe), await wish_of(pipe)] == [wish, wish]
    await steer_worker(pipe, [POOL], worker_id="w1", wish=Wish.RESUME)
    assert await wish_of(pipe) == ""


async def test_worker_is_called_to_hear_of_it(pipe: Pipe, backdoor: Backdoor) -> None:
    await wish_of(pipe)
    with backdoor.hear(KEYS.control) as heard:
        await steer_worker(pipe, [POOL], worker_id="w1", wish=Wish.DRAIN)
        assert heard() == b"call w1 0"


async def test_wish_that_was_taken_back_while_redis_was_away_is_not_revived(pipe: Pipe) -> None:
    """Only a record that has run out is filled from what the worker remembers."""
    await wish_of(pipe)
    assert await wish_of(pipe, Beat("w1", b"{}", (), 10.0, wish="pause")) == ""


async def test_unknown_worker_is_an_error_and_leaves_nothing(pipe: Pipe, backdoor: Backdoor) -> None:
    await wish_of(pipe)
    with pytest.raises(UnknownWorker):
        await steer_worker(pipe, [POOL], worker_id="w2", wish=Wish.DRAIN)
    assert not backdoor.ask("EXISTS", KEYS.worker("w2"))


async def test_worker_is_found_in_whichever_queue_it_serves(pipe: Pipe) -> None:
    await pipe.run(scripts.renew("small~1", BEAT))
    await steer_worker(pipe, ["small~0", "small~1"], worker_id="w1", wish=Wish.DRAIN)
    assert (await pipe.run(scripts.renew("small~1", BEAT)))[0] == b"drain"


async def test_pool_is_steered_in_all_its_queues(pipe: Pipe) -> None:
    queues = ["small~0", "small~1"]
    await steer_pool(pipe, queues, wish=Wish.PAUSE)
    assert [(await look(pipe, queue)).paused for queue in queues] == [True, True]
    await steer_pool(pipe, queues, wish=Wish.DRAIN)
    views = [await look(pipe, queue) for queue in queues]
    assert [(view.paused, view.draining) for view in views] == [(False, True)] * 2
    await steer_pool(pipe, queues, wish=Wish.RESUME)
    views = [await look(pipe, queue) for queue in queues]
    assert [(view.paused, view.draining) for view in views] == [(False, False)] * 2
    for queue in queues:
        await pipe.command("DEL", PoolKeys(queue).named("marker"))


async def test_what_waits_in_a_draining_pool_is_served(
    pipe: Pipe, producer: Producer, worker: Consumer
) -> None:
    job = submission()
    await producer.submit(job)
    await steer_pool(pipe, [POOL], wish=Wish.DRAIN)
    assert [lease.job_id for lease in (await worker.claim(1)).leases] == [job.job_id]


async def test_wishes_are_heard_with_memory_full(pipe: Pipe, backdoor: Backdoor) -> None:
    await wish_of(pipe)
    backdoor.fill_memory()
    try:
        await steer_worker(pipe, [POOL], worker_id="w1", wish=Wish.DRAIN)
    finally:
        backdoor.free_memory()
    assert await wish_of(pipe) == "drain"
