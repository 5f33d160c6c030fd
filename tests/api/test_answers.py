"""/openapi.json says what is answered: every operation is described, and documents have the fields that their schemas name, no others."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio
import redis

from api.answers import OPERATIONS, SCHEMAS, WHY
from api.app import create_app
from api.cli.redis_server import RedisServer
from broker import request_checks
from broker.settings import Settings
from tests.api.harness import CONFIG, ScriptedWorker, Served, chat, serve, whole_answer
from tests.workers.batch.rig import ENDPOINT, request_line

pytestmark = pytest.mark.asyncio(loop_scope="module")
Schema = dict[str, Any]


def differences(document: Any, schema: Schema, at: str = "") -> Iterator[str]:
    """Fields that a document has and its schema does not, and the other way round. Not their values: `make fuzz` checks those."""
    if "$ref" in schema:
        schema = SCHEMAS[schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        schema = schema["anyOf"][0]
    if isinstance(document, list):
        for entry in document:
            yield from differences(entry, schema.get("items", {}), f"{at}[]")
    fields = schema.get("properties")
    if isinstance(document, dict) and fields is not None:
        yield from (f"{at}.{name} is not described" for name in document.keys() - fields.keys())
        yield from (f"{at}.{name} is missing" for name in set(schema["required"]) - document.keys())
        for name in document.keys() & fields.keys():
            yield from differences(document[name], fields[name], f"{at}.{name}")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(
    redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Served]:
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
    settings = Settings(redis_url=redis_server.url, home=tmp_path_factory.mktemp("answers"))
    async with serve(settings) as running:
        yield running


async def test_every_operation_says_what_it_answers() -> None:
    document = create_app(Settings(), CONFIG).openapi()
    found = {f"{method} {path}" for path, methods in document["paths"].items() for method in methods}
    inference = {f"post {endpoint}" for endpoint in request_checks.SUBJECTS}
    assert found == OPERATIONS.keys() | inference
    for methods in document["paths"].values():
        for operation in methods.values():
            assert all(status.startswith("2") or int(status) in WHY for status in operation["responses"])
            assert all(answer["content"] for answer in operation["responses"].values())


async def described(
    served: Served, operation: str, path: str = "", *, status: int = 0, **request: Any
) -> Any:
    """What the operation answers, which has what its schema says. `path`: where that has ids. `status`: if it is an error."""
    method, usual = operation.split(" ")
    answer = await served.http.request(method.upper(), path or usual, **request)
    success, name, _ = OPERATIONS[operation]
    document = answer.json()
    assert answer.status_code == (status or success), document
    assert not list(differences(document, SCHEMAS["Error" if status else name]))
    return document


async def test_documents_have_the_fields_that_are_described(served: Served) -> None:
    worker = await ScriptedWorker.join(served.redis_url, "small")
    asked = chat(**{"class": "P1", "metadata": {"a": "b"}})
    accepted = await described(served, "post /v1/jobs", json=asked)
    await worker.finish(await worker.claim(), whole_answer("hello"))
    job = f"/v1/jobs/{accepted['id']}"
    ended = await described(served, "get /v1/jobs/{job_id}", job + "?wait=5")
    assert ended["status"] == "succeeded"
    await described(served, "get /v1/jobs")
    await described(served, "post /v1/jobs/{job_id}/feedback", f"{job}/feedback", json={"rating": "good"})
    await described(served, "get /v1/fleet")
    await described(served, "post /v1/fleet/{pool}/pause", "/v1/fleet/small/pause")
    await described(served, "get /v1/models")
    await worker.close()


async def test_documents_of_files_and_batches_have_the_fields_that_are_described(served: Served) -> None:
    form: dict[str, Any] = {"files": {"file": ("in.jsonl", request_line("a"))}, "data": {"purpose": "batch"}}
    file = await described(served, "post /v1/files", **form)
    await described(served, "get /v1/files")
    asked = {"input_file_id": file["id"], "endpoint": ENDPOINT, "completion_window": "1h"}
    batch = await described(served, "post /v1/batches", json=asked)
    await described(served, "get /v1/batches")
    await described(served, "get /v1/batches/{batch_id}", f"/v1/batches/{batch['id']}")
    await described(served, "delete /v1/files/{file_id}", f"/v1/files/{file['id']}")
    await described(served, "get /v1/files/{file_id}", f"/v1/files/{file['id']}", status=404)
