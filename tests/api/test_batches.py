"""`/v1/batches`: what is accepted, what is refused, and what the `openai` client sees of it."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from broker.batch_scripts import PLAN
from broker.settings import Settings
from tests.api.harness import Served
from tests.conditions import wait_until
from tests.workers.batch.rig import Bench, Engine, bench, request_line, request_lines, running

ENDPOINT: Final = "/v1/chat/completions"


@pytest.fixture
def settings(redis_url: str, tmp_path: Path) -> Settings:
    return Settings(redis_url=redis_url, home=tmp_path, slice_lines=10)


@pytest.fixture
async def table(settings: Settings) -> AsyncIterator[Bench]:
    """Stands in for Celery, whose messages a test passes on by hand."""
    async with bench(settings) as made, running(Engine(settings.redis_url)):
        yield made


async def upload(served: Served, content: bytes, *, purpose: str = "batch") -> str:
    form: dict[str, Any] = {"files": {"file": ("in.jsonl", content)}, "data": {"purpose": purpose}}
    return str((await served.http.post("/v1/files", **form)).json()["id"])


async def create(served: Served, *, headers: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
    asked = {"endpoint": ENDPOINT, "completion_window": "24h"} | fields
    answer = await served.http.post("/v1/batches", json=asked, headers=headers or {})
    return {"status_code": answer.status_code, **answer.json()}


async def test_openai_client_runs_a_batch(served: Served, table: Bench) -> None:
    async with served.openai() as client:
        content = request_lines(12) + request_line("bad", method="GET")
        source = await client.files.create(file=("in.jsonl", content), purpose="batch")
        batch = await client.batches.create(
            input_file_id=source.id, endpoint=ENDPOINT, completion_window="24h", metadata={"a": "b"}
        )
        assert batch.status == "validating"
        assert batch.expires_at == batch.created_at + 86_400
        await table.send(batch.id, PLAN)
        await table.ended(await table.means.batches.get(batch.id))
        batch = await client.batches.retrieve(batch.id)
        assert batch.status == "completed"
        assert batch.metadata == {"a": "b"}
        assert batch.request_counts is not None
        assert batch.request_counts.to_dict() == {"total": 13, "completed": 12, "failed": 1}
        assert batch.in_progress_at
        assert batch.finalizing_at
        assert batch.completed_at
        assert batch.output_file_id
        assert batch.error_file_id
        assert len((await client.files.content(batch.output_file_id)).text.splitlines()) == 12
        assert '"bad"' in (await client.files.content(batch.error_file_id)).text
        assert [one.id async for one in client.batches.list()] == [batch.id]
        output = await client.files.retrieve(batch.output_file_id)
        assert output.purpose == "batch_output"


async def test_a_message_for_the_plan_is_sent(served: Served, table: Bench) -> None:
    await create(served, input_file_id=await upload(served, request_lines(1)))

    async def queued() -> int:
        return int(await served.pipe.command("LLEN", "headway.celery:batch"))

    assert await wait_until(queued, what="the message") == 1


async def test_lists_page_by_page_newest_first(served: Served) -> None:
    source = await upload(served, request_lines(1))
    ids = [(await create(served, input_file_id=source))["id"] for _ in range(3)]
    first = (await served.http.get("/v1/batches", params={"limit": 2})).json()
    assert ([b["id"] for b in first["data"]], first["has_more"]) == ([ids[2], ids[1]], True)
    rest = (await served.http.get("/v1/batches", params={"after": first["last_id"]})).json()
    assert ([b["id"] for b in rest["data"]], rest["has_more"]) == ([ids[0]], False)


async def test_a_repeat_with_the_same_idempotency_key_is_the_same_batch(served: Served) -> None:
    source, key = await upload(served, request_lines(1)), {"Idempotency-Key": "k"}
    first = await create(served, input_file_id=source, headers=key)
    assert (await create(served, input_file_id=source, headers=key))["id"] == first["id"]
    other = await create(served, input_file_id=source, headers=key, endpoint="/v1/completions")
    assert other["status_code"] == 409
    assert other["error"]["code"] == "idempotency_key_reused"


@pytest.mark.parametrize(
    ("headers", "metadata", "wanted"),
    [({}, {}, "P2"), ({"X-Headway-Class": "p3"}, {}, "P3"), ({}, {"headway_class": "P3"}, "P3")],
)
async def test_class_by_header_or_metadata(
    served: Served, headers: dict[str, str], metadata: dict[str, str], wanted: str
) -> None:
    source = await upload(served, request_lines(1))
    made = await create(served, input_file_id=source, headers=headers, metadata=metadata)
    assert made["class"] == wanted


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"endpoint": "/v1/images"}, "endpoint"),
        ({"endpoint": None}, "endpoint"),
        ({"completion_window": "1y"}, "completion_window"),
        ({"completion_window": "99d"}, "completion_window"),
        ({"completion_window": 24}, "completion_window"),
        ({"input_file_id": 3}, "input_file_id"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"metadata": {f"k{n}": "v" for n in range(17)}}, "metadata"),
        ({"metadata": {"headway_class": "P0"}}, "class"),
        ({"metadata": {"headway_class": "P9"}}, "metadata.headway_class"),
    ],
)
async def test_a_wrong_field_is_refused_by_name(served: Served, changes: dict[str, Any], param: str) -> None:
    source = await upload(served, request_lines(1))
    made = await create(served, **({"input_file_id": source} | changes))
    assert (made["status_code"], made["error"]["param"]) == (400, param)


async def test_an_input_that_is_unknown_or_not_for_batches_is_refused(served: Served) -> None:
    made = await create(served, input_file_id="file-nope")
    assert (made["status_code"], made["error"]["code"]) == (404, "file_not_found")
    made = await create(served, input_file_id=await upload(served, b"x", purpose="user_data"))
    assert (made["status_code"], made["error"]["param"]) == (400, "input_file_id")


async def test_cancel_of_a_batch_and_of_none(served: Served, table: Bench) -> None:
    made = await create(served, input_file_id=await upload(served, request_lines(1)))
    answer = await served.http.post(f"/v1/batches/{made['id']}/cancel")
    assert answer.json()["status"] == "cancelling"
    await table.send(made["id"], PLAN)
    await table.ended(await table.means.batches.get(made["id"]))
    assert (await served.http.get(f"/v1/batches/{made['id']}")).json()["status"] == "cancelled"
    assert (await served.http.post("/v1/batches/batch_nope/cancel")).status_code == 404
    assert (await served.http.get("/v1/batches/batch_nope")).json()["error"]["code"] == "batch_not_found"


async def test_cancel_of_an_ended_batch_is_a_conflict(served: Served, table: Bench) -> None:
    made = await create(served, input_file_id=await upload(served, b""))
    await table.send(made["id"], PLAN)
    await table.ended(await table.means.batches.get(made["id"]))
    failed = (await served.http.get(f"/v1/batches/{made['id']}")).json()
    assert (failed["status"], failed["errors"]["data"][0]["code"]) == ("failed", "empty_file")
    answer = await served.http.post(f"/v1/batches/{made['id']}/cancel")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "batch_ended")
