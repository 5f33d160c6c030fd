"""What the ledger decides, as a running worker does it: prompts one after the other, choices, a full cache, a busy engine."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

import orjson

from broker.job import Forecast, ServiceClass, Status
from tests.conditions import wait_until
from tests.workers.conftest import Maker
from tests.workers.scripted import ScriptedEngine, answer, payload
from workers.capacity import Plan
from workers.engine import Delta, EngineBusy, EngineCall, Final

P2 = ServiceClass.P2


def chat(text: str, **more: object) -> bytes:
    return orjson.dumps({"messages": [{"role": "user", "content": text}]} | more)


@dataclass
class Gates:
    """Answers begin as the test lets them, by the order in which they were asked for."""

    open: dict[str, asyncio.Event] = field(default_factory=dict)

    async def script(self, call: EngineCall) -> AsyncGenerator[Delta | Final, None]:
        await self.open.setdefault(call.job_id, asyncio.Event()).wait()
        yield Delta(payload("first"), 1)
        await asyncio.Event().wait()


async def test_batch_prompts_are_read_one_after_the_other_and_chats_beside_them(worker: Maker) -> None:
    gates = Gates()
    rig = await worker(ScriptedEngine(gates.script), plan=Plan(4, prefill_tokens=50))
    batch = [
        await rig.submit(service_class=P2, body=chat("word " * 100), forecast=Forecast(125, 10, n / 100))
        for n in range(3)
    ]
    await wait_until(lambda: rig.engine.seen == batch[:1])
    talk = await rig.submit(body=chat("word " * 100))
    await wait_until(lambda: rig.engine.seen == [batch[0], talk])
    gates.open[batch[0]].set()
    await wait_until(lambda: rig.engine.seen == [batch[0], talk, batch[1]])
    for job_id in (*batch, talk):
        await rig.producer.cancel(job_id)


async def test_a_request_for_two_choices_leaves_no_slot_for_another_where_there_are_two(
    worker: Maker,
) -> None:
    gates = Gates()
    rig = await worker(ScriptedEngine(gates.script), plan=Plan(2))
    double = await rig.submit(body=chat("hi", n=2), choices=2)
    await wait_until(lambda: rig.engine.seen == [double])
    assert rig.puller.ledger.free == 0
    single = await rig.submit()
    await rig.producer.cancel(double)
    await wait_until(lambda: rig.engine.seen == [double, single])
    await rig.producer.cancel(single)


async def test_answers_that_outgrow_the_cache_cost_the_youngest_batch_job_its_place(worker: Maker) -> None:
    gates = Gates()

    async def endless(call: EngineCall) -> AsyncGenerator[Delta | Final, None]:
        yield Delta(payload("a"), 1)
        if call.job_id not in gates.open:  # a second attempt does not begin
            await gates.open.setdefault(call.job_id, asyncio.Event()).wait()
            for _ in range(40):
                yield Delta(payload("b"), 16)
        await asyncio.Event().wait()

    rig = await worker(ScriptedEngine(endless), plan=Plan(4, kv_tokens=800, preempt_after_s=None))
    old, young = [
        await rig.submit(service_class=P2, forecast=Forecast(5, 10, n / 100, kv_tokens=16)) for n in (1, 2)
    ]
    await wait_until(lambda: len(gates.open) == 2)
    assert rig.puller.preempted == 0
    gates.open[old].set()
    gates.open[young].set()
    await wait_until(lambda: rig.puller.preempted >= 1)
    assert rig.engine.aborted[0] == young
    assert (await rig.producer.get(old)).status is Status.RUNNING
    for job_id in (old, young):
        await rig.producer.cancel(job_id)


async def test_a_busy_engine_is_asked_for_less_at_once(worker: Maker) -> None:
    refused = False

    async def busy_once(call: EngineCall) -> AsyncGenerator[Delta | Final, None]:
        nonlocal refused
        if not refused:
            refused = True
            raise EngineBusy("no room", retry_after_s=0.01)
        async for item in answer(call):
            yield item

    rig = await worker(ScriptedEngine(busy_once, slots=8))
    job_id = await rig.submit()
    assert (await rig.ended(job_id)).status is Status.SUCCEEDED
    assert rig.puller.ledger.slots == 4


async def test_batch_work_makes_room_in_the_cache_for_a_chat_though_slots_are_free(worker: Maker) -> None:
    gates = Gates()
    rig = await worker(ScriptedEngine(gates.script), plan=Plan(4, kv_tokens=1000, preempt_after_s=0.01))
    batch = await rig.submit(service_class=P2, forecast=Forecast(5, 800, 9.0, kv_tokens=805))
    await wait_until(lambda: rig.engine.seen == [batch])
    talk = await rig.submit(forecast=Forecast(5, 400, 9.0, kv_tokens=405))
    await wait_until(lambda: rig.engine.seen == [batch, talk])
    assert rig.engine.aborted == [batch]
    for job_id in (batch, talk):
        await rig.producer.cancel(job_id)


async def test_a_cache_that_only_batch_work_waits_for_stops_nobody(worker: Maker) -> None:
    gates = Gates()
    rig = await worker(ScriptedEngine(gates.script), plan=Plan(4, kv_tokens=1000, preempt_after_s=0.01))
    first = await rig.submit(service_class=P2, forecast=Forecast(5, 800, 1.0, kv_tokens=805))
    await wait_until(lambda: rig.engine.seen == [first])
    second = await rig.submit(service_class=P2, forecast=Forecast(5, 400, 2.0, kv_tokens=405))
    talk = await rig.submit(forecast=Forecast(5, 5, 1.0, kv_tokens=10))
    await wait_until(lambda: rig.engine.seen == [first, talk])
    assert rig.puller.preempted == 0
    for job_id in (first, second, talk):
        await rig.producer.cancel(job_id)
