"""Webhooks: tells a job's `callback_url` that it has ended. At least once, with patience, and never into this network.

Runs off the data path: a receiver that is slow or gone holds up nobody's job. A name is looked up once, and the address that
was found is the one that is connected to; redirects are not followed; what a receiver answers is not read.
"""

import asyncio
import logging
import random
import socket
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx
import orjson

from broker import fleet
from broker.callbacks import Deliveries, Delivery, check_url, is_public, sign
from broker.config import load_config
from broker.connection import Pipe
from broker.ends import Ends, Who, short_id
from broker.errors import BrokerError, ConfigError, InvalidJob, UnknownJob
from broker.job import JobView
from broker.producer import Producer
from broker.settings import Settings

log = logging.getLogger("headway.callbacks")
BACKOFF_S = (5, 30, 120, 600, 3600, 3 * 3600, 6 * 3600, 12 * 3600)
ANSWER_S = 10.0
AT_ONCE = 50
RUN_S = 10.0  # the other chores wait meanwhile
CLAIM_S = 60.0  # nobody else tries meanwhile
GONE = 410  # the receiver wants no more


class NotDelivered(BrokerError):
    """Why, without the address's secrets."""


async def call_back(settings: Settings, pipe: Pipe) -> int:
    """Takes note of ends, and makes the calls that are due, for some seconds at most. Returns how many were taken."""
    deliveries, taken, until = Deliveries(pipe), 0, time.monotonic() + RUN_S
    while True:
        await take_note(settings, pipe, deliveries=deliveries)
        due = await deliveries.due(time.time(), limit=AT_ONCE)
        for delivery in due:
            await deliveries.put_off(delivery.delivery_id, due=time.time() + CLAIM_S)
        tried = [_deliver(settings, deliveries, delivery=delivery) for delivery in due]
        taken += sum(await asyncio.gather(*tried))
        if len(due) < AT_ONCE or time.monotonic() > until:
            return taken


async def take_note(settings: Settings, pipe: Pipe, *, deliveries: Deliveries) -> None:
    """Of jobs that have ended. What is to be told is fixed here, as a result may have expired by the last attempt."""
    ends, producer = Ends(pipe, Who.CALLBACK), Producer(pipe)
    ids = await ends.look(await fleet.known_queues(pipe))
    for job_id in ids:
        try:
            job = await producer.get(job_id)
        except UnknownJob:
            log.warning("%s ended unheard: its record has expired", job_id)
            continue
        kept = orjson.loads(job.metadata) if job.metadata else {}
        if "callback" not in kept:
            continue
        body = render(job, kept, max_bytes=settings.callback_max_bytes)
        delivery = Delivery(short_id(job_id), kept["callback"]["url"], job.tenant, body)
        await deliveries.add(delivery, due=time.time())
    await ends.drop(ids)


def render(job: JobView, kept: Mapping[str, Any], *, max_bytes: int) -> bytes:
    """The body. A result that makes it too large is left out: it can be fetched by the job's id."""
    told = {
        "id": kept["callback"]["id"],
        "ended_as": job.job_id,
        "object": "job",
        "status": job.status,
        "class": job.service_class.name,
        "model": kept.get("model", job.pool),
        "pool": job.pool,
        "created_at": job.created,
        "finished_at": job.finished,
        "metadata": kept.get("metadata", {}),
        "usage": job.usage or None,
        "result": _document(job.result),
        "error": _document(job.error),
    }
    event = {"type": f"job.{job.status}", "timestamp": job.finished, "data": told}
    body = orjson.dumps(event)
    if len(body) <= max_bytes:
        return body
    return orjson.dumps(event | {"data": told | {"result": None, "error": None, "left_out": "too_large"}})


def _document(data: bytes | None) -> Any:
    if data is None:
        return None
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:  # a stream's chunks
        return data.decode("utf-8", "replace")


async def _deliver(settings: Settings, deliveries: Deliveries, *, delivery: Delivery) -> int:
    """1 if it was taken. Raises RedisAway."""
    try:
        secret = await _secret(settings, deliveries, tenant=delivery.tenant)
        async with asyncio.timeout(ANSWER_S):
            status = await post(delivery, secret=secret, private=settings.callbacks_to_private)
    except (NotDelivered, InvalidJob, httpx.HTTPError, OSError, TimeoutError) as error:
        status, why = 0, str(error) or type(error).__name__
    else:
        why = f"HTTP {status}"
    if 200 <= status < 300:
        await deliveries.end(delivery.delivery_id)
        return 1
    if status == GONE or delivery.attempts >= len(BACKOFF_S):
        log.warning("the callback of %s is given up: %s", delivery.delivery_id, why)
        await deliveries.end(delivery.delivery_id)
        return 0
    log.info("the callback of %s was not taken (%s); it is tried again", delivery.delivery_id, why)
    wait_s = BACKOFF_S[delivery.attempts] * random.uniform(1.0, 1.5)
    await deliveries.put_off(delivery.delivery_id, due=time.time() + wait_s, failed=True)
    return 0


async def _secret(settings: Settings, deliveries: Deliveries, *, tenant: str) -> str:
    """Of the tenant, in this order: headway.yaml, HEADWAY_CALLBACK_SECRET, Redis."""
    try:
        entries = load_config(settings).tenants
    except ConfigError as error:
        raise NotDelivered(f"its secret is not known: {error}") from None
    own = next((each.callback_secret for each in entries if each.name == tenant), None)
    found = own or settings.callback_secret
    return found.get_secret_value() if found else await deliveries.secret(tenant)


async def post(delivery: Delivery, *, secret: str, private: bool) -> int:
    """The status that the receiver answers. Raises NotDelivered, InvalidJob, httpx.HTTPError, OSError."""
    url = httpx.URL(check_url(delivery.url, private=private))
    address = await resolve(url, private=private)
    at = int(time.time())
    headers = {
        "host": url.netloc.decode(),
        "content-type": "application/json",
        "user-agent": "Headway",
        "webhook-id": delivery.delivery_id,
        "webhook-timestamp": str(at),
        "webhook-signature": sign(secret, delivery=delivery.delivery_id, at=at, body=delivery.body),
    }
    # no proxies from the environment: they would look the name up again
    async with httpx.AsyncClient(trust_env=False, follow_redirects=False, timeout=ANSWER_S) as client:
        request = client.build_request(
            "POST",
            url.copy_with(host=address),
            content=delivery.body,
            headers=headers,
            extensions={"sni_hostname": url.host},
        )
        answer = await client.send(request, stream=True)
        await answer.aclose()
    return answer.status_code


async def resolve(url: httpx.URL, *, private: bool) -> str:
    """The address to connect to. One that is not public forbids all of the name. Raises NotDelivered, OSError."""
    port = urlsplit(str(url)).port or (443 if url.scheme == "https" else 80)
    found = await asyncio.get_running_loop().getaddrinfo(url.host, port, type=socket.SOCK_STREAM)
    addresses = [str(entry[4][0]) for entry in found]
    if not addresses:
        raise NotDelivered(f"{url.host} has no address")
    if not private and not all(map(is_public, addresses)):
        raise NotDelivered(f"{url.host} is an address of this network")
    return addresses[0]
