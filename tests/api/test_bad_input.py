"""Bad input: an OpenAI-shaped error with the right status, naming the field, and nothing in the queue."""

from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
import pytest_asyncio
import redis

from api.cli.redis_server import RedisServer
from broker.settings import Settings
from tests.api.harness import Served, chat, serve

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT = "/v1/chat/completions"
NOBODY = "job_00000000000000000000000000.small"
MESSAGES = [{"role": "user", "content": "hi"}]


def deep(levels: int) -> bytes:
    return b'{"model":"small","messages":[{"role":"user","content":' + b"[" * levels + b"]" * levels + b"}]}"


RAW: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "invalid_json"),
    "malformed": (b'{"model": "small", ', "invalid_json"),
    "not an object": (b"[1]", "invalid_json"),
    "null": (b"null", "invalid_json"),
    "not UTF-8": (b'{"model":"small","messages":[{"role":"user","content":"\xff\xfe"}]}', "invalid_json"),
    "NaN": (b'{"model":"small","messages":[{"a":1}],"temperature":NaN}', "invalid_json"),
    "infinity": (b'{"model":"small","messages":[{"a":1}],"temperature":1e999}', "invalid_json"),
    "lone surrogate": (b'{"model":"small","messages":[{"role":"user","content":"\\ud800"}]}', "invalid_json"),
    "101 deep": (deep(101), "invalid_json"),
    "100,000 deep": (deep(100_000), "invalid_json"),
}

FIELDS: dict[str, tuple[dict[str, Any], str]] = {
    "no model": ({"model": None}, "model"),
    "model is a number": ({"model": 3}, "model"),
    "model is empty": ({"model": ""}, "model"),
    "no messages": ({"messages": None}, "messages"),
    "messages empty": ({"messages": []}, "messages"),
    "messages is text": ({"messages": "hi"}, "messages"),
    "a message is text": ({"messages": [*MESSAGES, "hi"]}, "messages[1]"),
    "negative max_tokens": ({"max_tokens": -1}, "max_tokens"),
    "zero max_tokens": ({"max_tokens": 0}, "max_tokens"),
    "huge max_tokens": ({"max_tokens": 10**9}, "max_tokens"),
    "max_tokens beyond 64 bits": ({"max_completion_tokens": 2**63}, "max_completion_tokens"),
    "max_tokens is text": ({"max_tokens": "12"}, "max_tokens"),
    "max_tokens is a fraction": ({"max_tokens": 1.5}, "max_tokens"),
    "max_tokens is true": ({"max_tokens": True}, "max_tokens"),
    "n is zero": ({"n": 0}, "n"),
    "n is huge": ({"n": 100_000}, "n"),
    "stream is text": ({"stream": "yes"}, "stream"),
    "temperature is text": ({"temperature": "hot"}, "temperature"),
    "temperature is true": ({"temperature": True}, "temperature"),
    "top_p is a list": ({"top_p": [1]}, "top_p"),
    "tools is an object": ({"tools": {}}, "tools"),
    "response_format is text": ({"response_format": "json"}, "response_format"),
    "stop is a number": ({"stop": 5}, "stop"),
    "priority is text": ({"priority": "high"}, "priority"),
    "priority is a fraction": ({"priority": 0.5}, "priority"),
    "priority is huge": ({"priority": 1_000_001}, "priority"),
    "service_tier unknown": ({"service_tier": "gold"}, "service_tier"),
    "service_tier is a number": ({"service_tier": 1}, "service_tier"),
}

JOB_FIELDS: dict[str, tuple[dict[str, Any], str, str]] = {
    "class unknown": ({"class": "P9"}, "class", "invalid_value"),
    "class is a number": ({"class": 1}, "class", "invalid_value"),
    "deadline is zero": ({"deadline_s": 0}, "deadline_s", "invalid_value"),
    "deadline is text": ({"deadline_s": "soon"}, "deadline_s", "invalid_type"),
    "deadline is a year": ({"deadline_s": 31_536_000}, "deadline_s", "invalid_value"),
    "callback is no address": ({"callback_url": "ftp://x"}, "callback_url", "invalid_value"),
    "callback is a number": ({"callback_url": 7}, "callback_url", "invalid_value"),
    "callback is in this network": (
        {"callback_url": "https://127.0.0.1/hook"},
        "callback_url",
        "invalid_value",
    ),
    "callback is this host": ({"callback_url": "http://localhost:1/"}, "callback_url", "invalid_value"),
    "callback holds a password": ({"callback_url": "https://a:b@x.test/"}, "callback_url", "invalid_value"),
    "metadata is a list": ({"metadata": []}, "metadata", "invalid_value"),
    "metadata holds a number": ({"metadata": {"a": 1}}, "metadata", "invalid_value"),
    "metadata has 17 keys": ({"metadata": {str(n): "" for n in range(17)}}, "metadata", "invalid_value"),
    "a prompt too": ({"prompt": "hi"}, "prompt", "invalid_value"),
    "no subject": ({"messages": None}, "messages", "missing_required_parameter"),
}


JOB_FIELDS |= {
    f"{name} instead of deadline_s": ({name: 60}, name, "unknown_parameter")
    for name in ("deadline", "deadline_ms", "deadline_at", "timeout", "timeout_s", "ttl")
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(redis_server: RedisServer) -> AsyncIterator[Served]:
    """One server for the whole table: no case leaves anything behind, which each of them checks."""
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
    async with serve(Settings(redis_url=redis_server.url)) as running:
        yield running


async def refused(served: Served, path: str, **request: Any) -> dict[str, Any]:
    """The error object of a request that must be refused with 400; nothing may have been queued."""
    response = await served.http.post(path, **request)
    assert response.status_code == 400, response.text
    assert response.headers["content-type"] == "application/json"
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "code", "param"}
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    assert await served.pipe.command("KEYS", "hw:*job:*") == []
    return error


@pytest.mark.parametrize("path", [CHAT, "/v1/jobs"])
@pytest.mark.parametrize("case", RAW)
async def test_a_body_that_is_no_json_object_is_400(served: Served, *, case: str, path: str) -> None:
    raw, code = RAW[case]
    assert (await refused(served, path, content=raw))["code"] == code


@pytest.mark.parametrize("path", [CHAT, "/v1/jobs"])
@pytest.mark.parametrize("case", FIELDS)
async def test_a_wrong_field_is_400_and_named(served: Served, *, case: str, path: str) -> None:
    fields, param = FIELDS[case]
    body = {name: value for name, value in chat(**fields).items() if value is not None}
    assert (await refused(served, path, content=orjson.dumps(body)))["param"] == param


async def test_the_words_are_those_of_a_batchs_error_file(served: Served) -> None:
    """The same table for a line of a batch: tests/workers/batch/test_lines.py."""
    error = await refused(served, CHAT, json=chat(max_tokens=-1))
    assert error["message"] == "max_tokens must be between 1 and 1000000, not -1"
    assert (error["code"], error["param"]) == ("invalid_value", "max_tokens")


@pytest.mark.parametrize("case", JOB_FIELDS)
async def test_a_wrong_field_of_a_job_is_400_and_named(served: Served, *, case: str) -> None:
    fields, param, code = JOB_FIELDS[case]
    error = await refused(served, "/v1/jobs", json=chat(**fields))
    assert (error["param"], error["code"]) == (param, code)


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/completions", {}, "prompt"),
        ("/v1/completions", {"prompt": {}}, "prompt"),
        ("/v1/completions", {"prompt": [None]}, "prompt"),
        ("/v1/embeddings", {}, "input"),
        ("/v1/embeddings", {"input": ""}, "input"),
        ("/v1/embeddings", {"input": []}, "input"),
        ("/v1/embeddings", {"input": 3}, "input"),
    ],
)
async def test_every_endpoint_wants_its_subject(
    served: Served, *, path: str, fields: dict[str, Any], param: str
) -> None:
    assert (await refused(served, path, json={"model": "small", **fields}))["param"] == param


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("X-Headway-Class", "P4"),
        ("X-Headway-Class", ""),
        ("X-Headway-Deadline", "0"),
        ("X-Headway-Deadline", "-1"),
        ("X-Headway-Deadline", "nan"),
        ("X-Headway-Deadline", "inf"),
        ("X-Headway-Deadline", "1e9"),
        ("X-Headway-Deadline", "soon"),
    ],
)
async def test_a_wrong_header_is_400_and_named(served: Served, *, header: str, value: str) -> None:
    assert (await refused(served, CHAT, json=chat(), headers={header: value}))["param"] == header


async def test_a_hundred_levels_are_not_too_deep(served: Served) -> None:
    response = await served.http.post("/v1/jobs", content=deep(97))
    assert response.status_code == 202
    assert (await served.http.delete(f"/v1/jobs/{response.json()['id']}")).status_code == 200


async def test_null_stands_for_absent(served: Served) -> None:
    body = chat(max_tokens=None, stream=None, tools=None, priority=None, service_tier=None, metadata=None)
    response = await served.http.post("/v1/jobs", json=body)
    assert response.status_code == 202
    assert (await served.http.delete(f"/v1/jobs/{response.json()['id']}")).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", CHAT, 405),
        ("POST", "/v1/nothing", 404),
        ("GET", "/v1/jobs/garbage", 404),
        ("GET", "/v1/jobs/garbage/events", 404),
        ("GET", "/v1/jobs/job_00000000000000000000000000.small", 404),
        ("GET", "/v1/jobs/job_00000000000000000000000000.small/events", 404),
        ("DELETE", "/v1/jobs/job_00000000000000000000000000.small", 404),
        ("POST", "/v1/jobs/job_00000000000000000000000000.small/redrive", 404),
        ("GET", "/v1/jobs?after=job_00000000000000000000000000.small", 404),
        ("GET", "/v1/jobs?limit=0", 400),
        ("GET", "/v1/jobs?limit=x", 400),
        ("GET", "/v1/jobs?stat=queued", 400),
        ("GET", f"/v1/jobs/{NOBODY}?wait=x", 400),
        ("GET", f"/v1/jobs/{NOBODY}?wait=-1", 400),
        ("GET", f"/v1/jobs/{NOBODY}?wait=61", 400),
        ("GET", f"/v1/jobs/{NOBODY}?wait=nan", 400),
        ("GET", "/v1/batches?limit=0", 400),
        ("GET", "/v1/jobs?status=odd", 400),
        ("GET", "/v1/jobs?class=P7", 400),
        ("GET", "/v1/models/none", 404),
    ],
)
async def test_every_error_has_openais_shape(served: Served, *, method: str, path: str, status: int) -> None:
    response = await served.http.request(method, path)
    assert response.status_code == status
    assert set(response.json()["error"]) == {"message", "type", "code", "param"}
