"""Webhooks: signed, at least once, with patience, and never into this network unless that is allowed."""

import asyncio
import base64
import hashlib
import hmac
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace

import httpx
import orjson
import pytest
from pydantic import SecretStr

from broker import callbacks, scripts
from broker.callbacks import Deliveries, Delivery, check_url, is_public
from broker.connection import Pipe
from broker.consumer import Consumer
from broker.errors import InvalidJob
from broker.keys import CALLBACKS
from broker.policy import Asking
from broker.producer import Producer
from broker.scripts import Ending
from broker.settings import Settings
from tests.broker.jobs import LIMITS, POOL, submission
from workers.chores import callbacks as chore
from workers.chores.callbacks import BACKOFF_S, NotDelivered, call_back, post, resolve

SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()


@dataclass
class Receiver:
    """An HTTP server that answers what it is told to, and remembers what it got."""

    answers: list[bytes] = field(default_factory=list)
    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    port: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        lines = [line.split(": ", 1) for line in head.splitlines()[1:] if line]
        headers = {name.lower(): value for name, value in lines}
        self.requests.append((headers, await reader.readexactly(int(headers["content-length"]))))
        answer = self.answers.pop(0) if self.answers else b"200 OK"
        writer.write(b"HTTP/1.1 " + answer + b"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        writer.close()


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    found = Receiver()
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    found.port = server.sockets[0].getsockname()[1]
    yield found
    server.close()


@pytest.fixture
def settings(redis_url: str) -> Settings:
    return Settings(redis_url=redis_url, callbacks_to_private=True, callback_secret=SecretStr(SECRET))


async def finished(pipe: Pipe, redis_url: str, *, port: int, data: bytes = b'{"answer":1}') -> str:
    """A job with a callback that has succeeded."""
    job = submission(notify="c", listed=True, retain_s=100.0)
    kept = {"callback": {"url": f"http://127.0.0.1:{port}/hook", "id": job.job_id}, "metadata": {"a": "b"}}
    await Producer(pipe).submit(replace(job, metadata=orjson.dumps(kept)))
    consumer = Consumer(pipe, redis_url, pool=POOL, asking=Asking("w1"), limits=LIMITS)
    [lease] = (await consumer.claim(1)).leases
    await consumer.finish(lease, Ending(succeeded=True, data=data, prompt_tokens=3, output_tokens=2))
    await consumer.close()
    return job.job_id


async def make_due(pipe: Pipe) -> None:
    for name in await pipe.command("ZRANGE", CALLBACKS, 0, 10):
        await pipe.command("ZADD", CALLBACKS, 1, name)


async def test_receiver_is_told_once_and_can_check_who_tells(
    pipe: Pipe, redis_url: str, settings: Settings, *, receiver: Receiver
) -> None:
    job_id = await finished(pipe, redis_url, port=receiver.port)
    assert await call_back(settings, pipe) == 1
    assert await call_back(settings, pipe) == 0
    [(headers, body)] = receiver.requests
    event = orjson.loads(body)
    assert event["type"] == "job.succeeded"
    assert event["data"]["id"] == job_id
    assert event["data"]["result"] == {"answer": 1}
    assert event["data"]["metadata"] == {"a": "b"}
    assert headers["host"] == f"127.0.0.1:{receiver.port}"
    assert abs(int(headers["webhook-timestamp"]) - time.time()) < 60
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    digest = hmac.new(b"k" * 32, signed, hashlib.sha256).digest()
    assert headers["webhook-signature"] == "v1," + base64.b64encode(digest).decode()


async def test_more_than_one_round_is_called_in_one_run(
    pipe: Pipe, settings: Settings, monkeypatch: pytest.MonkeyPatch, *, receiver: Receiver
) -> None:
    monkeypatch.setattr(chore, "AT_ONCE", 2)
    url = f"http://127.0.0.1:{receiver.port}/"
    for number in range(5):
        await Deliveries(pipe).add(Delivery(f"job_{number}", url, "acme", b"{}"), due=1.0)
    assert await call_back(settings, pipe) == 5
    assert {headers["webhook-id"] for headers, _ in receiver.requests} == {f"job_{n}" for n in range(5)}


async def test_every_end_is_told_of(pipe: Pipe, settings: Settings, receiver: Receiver) -> None:
    job = submission(notify="c", retain_s=100.0)
    kept = {"callback": {"url": f"http://127.0.0.1:{receiver.port}/", "id": job.job_id}}
    await Producer(pipe).submit(replace(job, metadata=orjson.dumps(kept)))
    assert await call_back(settings, pipe) == 0
    await pipe.run(scripts.cancel(job.job_id))
    assert await call_back(settings, pipe) == 1
    assert orjson.loads(receiver.requests[0][1])["type"] == "job.cancelled"


@pytest.mark.parametrize("answer", [b"500 No", b"302 Found\r\nlocation: http://127.0.0.1:1/", b"429 Busy"])
async def test_receiver_that_does_not_take_it_is_asked_again_later(
    pipe: Pipe, redis_url: str, settings: Settings, *, receiver: Receiver, answer: bytes
) -> None:
    await finished(pipe, redis_url, port=receiver.port)
    receiver.answers = [answer]
    assert await call_back(settings, pipe) == 0
    assert await call_back(settings, pipe) == 0, "it is not due yet"
    assert len(receiver.requests) == 1
    await make_due(pipe)
    assert await call_back(settings, pipe) == 1
    first, second = receiver.requests
    assert first[1] == second[1]
    assert first[0]["webhook-id"] == second[0]["webhook-id"]
    assert not await pipe.command("EXISTS", CALLBACKS)


async def test_nobody_is_asked_for_ever(
    pipe: Pipe, redis_url: str, settings: Settings, *, receiver: Receiver
) -> None:
    await finished(pipe, redis_url, port=receiver.port)
    receiver.answers = [b"500 No"] * 50
    for _ in range(len(BACKOFF_S) + 3):
        await call_back(settings, pipe)
        await make_due(pipe)
    assert len(receiver.requests) == len(BACKOFF_S) + 1
    assert not await pipe.command("EXISTS", CALLBACKS)


async def test_receiver_that_is_gone_is_not_asked_again(
    pipe: Pipe, redis_url: str, settings: Settings, *, receiver: Receiver
) -> None:
    await finished(pipe, redis_url, port=receiver.port)
    receiver.answers = [b"410 Gone"]
    await call_back(settings, pipe)
    assert not await pipe.command("EXISTS", CALLBACKS)


async def test_address_of_this_network_is_not_called(
    pipe: Pipe, redis_url: str, settings: Settings, *, receiver: Receiver
) -> None:
    await finished(pipe, redis_url, port=receiver.port)
    strict = settings.model_copy(update={"callbacks_to_private": False})
    assert await call_back(strict, pipe) == 0
    assert receiver.requests == []
    with pytest.raises(NotDelivered):
        await resolve(httpx.URL("http://localhost/"), private=False)


async def test_name_is_looked_up_once_and_that_address_is_called(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name whose second answer would be another address gains nothing by it."""
    loop, asked = asyncio.get_running_loop(), list[str]()

    async def look_up(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        asked.append(host)
        return [(2, 1, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(loop, "getaddrinfo", look_up)
    delivery = Delivery("job_1", f"http://hook.test:{receiver.port}/a?b=c", "acme", b"{}")
    assert await post(delivery, secret=SECRET, private=True) == 200
    assert asked[0] == "hook.test"
    assert set(asked[1:]) <= {"127.0.0.1"}
    assert receiver.requests[0][0]["host"] == f"hook.test:{receiver.port}"
    with pytest.raises(NotDelivered):
        await post(delivery, secret=SECRET, private=False)


async def test_result_that_is_too_large_is_left_out(
    pipe: Pipe, redis_url: str, settings: Settings, *, receiver: Receiver
) -> None:
    job_id = await finished(pipe, redis_url, port=receiver.port, data=orjson.dumps(["x" * 5000]))
    await call_back(settings.model_copy(update={"callback_max_bytes": 1024}), pipe)
    told = orjson.loads(receiver.requests[0][1])["data"]
    assert told["result"] is None
    assert told["left_out"] == "too_large"
    assert told["id"] == job_id


async def test_tenant_without_a_secret_gets_one_that_stays(pipe: Pipe) -> None:
    first, again = [await Deliveries(pipe).secret("acme") for _ in range(2)]
    assert first == again
    assert len(callbacks.key_of(first)) == 32
    assert await Deliveries(pipe).secret("other") != first


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1::1", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.0.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("::1", False),
        ("::", False),
        ("fe80::1%eth0", False),
        ("fd00::1", False),
        ("fec0::1", False),
        ("ff02::1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:93.184.216.34", True),
        ("64:ff9b::a00:1", False),
        ("2002:7f00:1::", False),
    ],
)
def test_public_is_what_leads_out_of_this_network(address: str, *, public: bool) -> None:
    assert is_public(address) is public


@pytest.mark.parametrize(
    "url",
    [
        "ftp://x.test/",
        "https://",
        "https://u:p@x.test/",
        "http://[::1]/",
        "http://127.1.2.3/",
        "http://LOCALHOST./",
        "http://a.localhost/",
        "http://x.test/\n",
        "http://x.test:99999/",
        "http://x.test/" + "a" * 2048,
        7,
        None,
    ],
)
def test_address_that_may_not_be_called_is_refused(url: object) -> None:
    with pytest.raises(InvalidJob):
        check_url(url, private=False)


def test_address_that_may_be_called_is_taken() -> None:
    assert check_url("https://hooks.example.com:8443/a?b=c", private=False)
    assert check_url("http://10.0.0.1/hook", private=True)
