"""What becomes of a batch and of each of its lines, whatever is lost, repeated, stopped or wrong."""

import orjson
import pytest

from broker.batch_record import BatchStatus, message_for
from broker.batch_scripts import PLAN
from broker.job import ServiceClass
from broker.scripts import Ending
from broker.settings import Settings
from tests.broker.bucket import Bucket
from tests.conditions import wait_until
from tests.workers.batch.rig import (
    Bench,
    Engine,
    bench,
    each_once,
    ended,
    request_line,
    request_lines,
    running,
)
from workers.batch.lines import MAX_LINE_BYTES


async def test_every_line_is_answered_once_in_the_order_of_the_input(table: Bench, engine: Engine) -> None:
    outcome = await table.ended(await table.submit(request_lines(35)))
    assert outcome.batch.status is BatchStatus.COMPLETED
    assert each_once(outcome.answered, 35)
    assert [line["response"]["body"]["echo"] for line in outcome.output] == [f"text {n}" for n in range(35)]
    assert set(engine.asked.values()) == {1}
    assert (outcome.batch.total, outcome.batch.completed, outcome.batch.failed) == (35, 35, 0)
    assert outcome.batch.error_file_id == ""
    assert outcome.batch.slices == 4


async def test_a_line_of_the_output_is_as_openai_writes_it(table: Bench, engine: Engine) -> None:
    (line,) = (await table.ended(await table.submit(request_line("a")))).output
    assert set(line) == {"id", "custom_id", "response", "error"}
    assert line["id"].startswith("batch_req_")
    assert line["error"] is None
    assert set(line["response"]) == {"status_code", "request_id", "body"}
    assert line["response"]["status_code"] == 200


async def test_lines_are_queued_in_the_batchs_class_within_the_window(
    table: Bench, held_engine: Engine
) -> None:
    batch = await table.submit(request_lines(30), service_class=ServiceClass.P3)

    async def queued() -> int:
        return int(await table.means.pipe.command("ZCARD", "hw:{small}:ready:3"))

    await wait_until(queued, what="lines in the queue")
    window = table.means.settings.batch_window * table.means.settings.celery_concurrency
    held_engine.slots = 1
    held_engine.hold.set()
    highest = 0
    while not (await table.get(batch)).status.terminal:
        highest = max(highest, await queued())
    assert 0 < highest <= window
    assert held_engine.classes == {ServiceClass.P3}


async def test_a_bad_line_becomes_an_error_and_does_not_sink_the_others(table: Bench, engine: Engine) -> None:
    content = b"".join(
        (
            b"\xef\xbb\xbf" + request_line("good-1"),
            b"\n",
            b"{not json\n",
            b"\xff\xfe\n",
            b"[1]\n",
            request_line(None),
            request_line("get", method="GET"),
            request_line("url", url="/v1/embeddings"),
            request_line("body", body=[]),
            request_line("model", body={"model": "huge", "messages": [{"role": "user", "content": "hi"}]}),
            request_line("range", body={"model": "small", "messages": [{}], "max_tokens": -1}),
            request_line("deep").replace(b'"hi"', b"[" * 300 + b"]" * 300),
            request_line("good-1", "again"),
            request_line("long", "x" * MAX_LINE_BYTES),
            request_line("good-2").rstrip(b"\n"),
        )
    )
    outcome = await table.ended(await table.submit(content))
    assert outcome.batch.status is BatchStatus.COMPLETED
    assert outcome.answered == ["good-1", "good-2"]
    assert [(line["custom_id"], line["error"]["code"]) for line in outcome.errors] == [
        (None, "invalid_json_line"),
        (None, "invalid_json_line"),
        (None, "invalid_json_line"),
        (None, "invalid_custom_id"),
        ("get", "invalid_method"),
        ("url", "invalid_url"),
        ("body", "invalid_body"),
        ("model", "model_not_found"),
        ("range", "invalid_value"),
        ("deep", "invalid_body"),
        ("good-1", "duplicate_custom_id"),
        (None, "line_too_long"),
    ]
    assert (outcome.batch.total, outcome.batch.completed, outcome.batch.failed) == (14, 2, 12)
    assert "line 3 " in outcome.errors[0]["error"]["message"]


async def test_a_custom_id_that_repeats_in_another_slice_is_found(table: Bench, engine: Engine) -> None:
    outcome = await table.ended(await table.submit(request_lines(25) + request_line("r3", "again")))
    assert outcome.codes == {"r3": "duplicate_custom_id"}
    assert each_once(outcome.answered, 25)


async def test_a_request_that_the_engine_refuses_is_in_the_error_file(table: Bench, engine: Engine) -> None:
    document = {
        "message": "too long",
        "type": "invalid_request_error",
        "code": "c",
        "param": None,
        "status": 400,
    }
    engine.answer = lambda _: Ending(False, orjson.dumps(document))
    outcome = await table.ended(await table.submit(request_lines(3)))
    assert outcome.batch.status is BatchStatus.COMPLETED
    assert outcome.batch.output_file_id == ""
    assert [line["response"]["status_code"] for line in outcome.errors] == [400] * 3
    assert outcome.errors[0]["response"]["body"]["error"]["message"] == "too long"


async def test_an_answer_that_is_not_json_is_an_error_line(table: Bench, engine: Engine) -> None:
    deep = b"\n" + b"[" * 300 + b"]" * 300
    engine.answer = lambda lease: Ending(True, deep if b"deep" in lease.body else b"oops")
    outcome = await table.ended(await table.submit(request_line("a") + request_line("b", "deep")))
    assert outcome.codes == {"a": "invalid_answer", "b": "invalid_answer"}


async def test_an_answer_over_several_lines_stays_one_line(table: Bench, engine: Engine) -> None:
    engine.answer = lambda _: Ending(True, b'{\n"a": 1\n}')
    (line,) = (await table.ended(await table.submit(request_line("a")))).output
    assert line["response"]["body"] == {"a": 1}


@pytest.mark.parametrize("content", [b"", b"\n \r\n\n"])
async def test_an_input_without_lines_fails_the_batch_and_says_why(table: Bench, content: bytes) -> None:
    outcome = await table.ended(await table.submit(content))
    assert outcome.batch.status is BatchStatus.FAILED
    assert orjson.loads(outcome.batch.errors)[0]["code"] == "empty_file"
    assert "failed_at" in outcome.batch.times


async def test_an_input_that_is_gone_fails_the_batch(table: Bench) -> None:
    table.lose.add(PLAN)
    batch = await table.submit(request_lines(3))
    await table.means.files.delete(batch.spec.input_file_id)
    table.lose.clear()
    await table.send(batch.batch_id, PLAN)
    outcome = await table.ended(batch)
    assert orjson.loads(outcome.batch.errors)[0]["code"] == "input_file_not_found"


async def test_a_slice_that_finds_no_room_waits_for_another_to_end(
    settings: Settings, engine: Engine
) -> None:
    async with bench(settings.model_copy(update={"celery_concurrency": 1})) as narrow:
        first, second = [await narrow.submit(request_lines(20)) for _ in range(2)]
        assert each_once((await narrow.ended(first)).answered, 20)
        assert each_once((await narrow.ended(second)).answered, 20)


async def test_an_input_deleted_meanwhile_fails_the_lines_that_were_not_read(
    table: Bench, held_engine: Engine
) -> None:
    table.lose |= {"0", "1", "2"}
    batch = await table.submit(request_lines(30))
    await wait_until(lambda: "1" in table.sent and not table.tasks)
    await table.means.files.delete(batch.spec.input_file_id)
    table.lose.clear()
    for unit in ("0", "1"):
        await table.send(batch.batch_id, unit)
    outcome = await table.ended(batch)
    assert {line["error"]["code"] for line in outcome.errors} == {"input_file_gone"}
    assert outcome.batch.failed == 30


async def test_files_may_be_in_an_object_store(settings: Settings, engine: Engine) -> None:
    assert Bucket.protocol == "bucket"
    async with bench(settings.model_copy(update={"files_url": "bucket://headway/files"})) as table:
        outcome = await table.ended(await table.submit(request_lines(25) + b"bad"))
        assert each_once(outcome.answered, 25)
        assert len(outcome.errors) == 1
        assert await table.means.files.storage.names("batches") == []


@pytest.mark.timeout(180)
async def test_a_batch_of_many_lines_keeps_the_queue_and_the_parts_small(
    settings: Settings, redis_url: str
) -> None:
    large = settings.model_copy(update={"slice_lines": 1000, "batch_window": 64, "lease_s": 10.0})
    engine = Engine(redis_url, slots=128)
    async with bench(large) as table, running(engine):
        batch = await table.submit(request_lines(10_000))
        outcome = await ended(table.means, batch.batch_id, timeout_s=170)
        assert each_once(outcome.answered, 10_000)
        keys = await table.means.pipe.command("DBSIZE")
    # answers of the slices that run stay in Redis until their parts are stored, and a second longer
    assert keys < 10_000


def test_messages_name_the_tasks_and_carry_ids_only() -> None:
    assert message_for("batch_a", PLAN) == ("headway.plan", ("batch_a",))
    assert message_for("batch_a", "7") == ("headway.slice", ("batch_a", "7"))
    assert message_for("batch_a", "finalize") == ("headway.finalize", ("batch_a",))
