"""Calls to whoever wants to be told that a job has ended: what may be called, what is said, and what is still to be said.

A delivery is a small record until its receiver has taken it, or nobody tries any more; `workers/chores/callbacks.py` makes
them. Headers and signature are those of Standard Webhooks (standardwebhooks.com), as OpenAI's webhooks have them.
"""

import asyncio
import base64
import binascii
import hashlib
import hmac
import ipaddress
import secrets
from dataclasses import dataclass
from urllib.parse import urlsplit

from broker.connection import Pipe
from broker.errors import InvalidJob
from broker.keys import CALLBACK_SECRETS, CALLBACKS, callback_key

MAX_URL_CHARS = 2048
KEPT_S = 3 * 86_400.0  # a record, after it was last touched
TUNNELS = tuple(
    ipaddress.ip_network(net) for net in ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32")
)
SECRET_PREFIX = "whsec_"  # noqa: S105 - of all of them


def is_public(address: str) -> bool:
    """Whether it is anybody's on the internet: not this host's, this network's, or one that leads there."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            return is_public(str(ip.ipv4_mapped))
        if ip.is_site_local or any(ip in net for net in TUNNELS):
            return False
    return ip.is_global and not ip.is_multicast and not ip.is_reserved


def check_url(url: object, *, private: bool) -> str:
    """The address, if a callback may go there as far as its text tells; what its name means is looked up when it is called.

    `private`: addresses of this network may be called. Raises InvalidJob.
    """
    try:
        parts = urlsplit(url) if isinstance(url, str) else None
        port = parts.port if parts else None
    except ValueError:
        parts = port = None
    if (
        not isinstance(url, str)
        or parts is None
        or parts.scheme not in ("http", "https")
        or not parts.hostname
    ):
        raise _wrong("callback_url must be an http:// or https:// address")
    if len(url) > MAX_URL_CHARS or not (url.isascii() and url.isprintable()) or " " in url or port == 0:
        raise _wrong(f"callback_url must be at most {MAX_URL_CHARS} printable ASCII characters")
    if parts.username is not None or parts.password is not None:
        raise _wrong("callback_url must not hold a user or password")
    if not private and _is_here(parts.hostname):
        raise _wrong(
            "callback_url is an address of this network; HEADWAY_CALLBACKS_TO_PRIVATE=true allows that"
        )
    return url


def _wrong(message: str) -> InvalidJob:
    return InvalidJob(message, param="callback_url")


def _is_here(host: str) -> bool:
    try:
        return not is_public(host)
    except ValueError:  # a name
        return host.rstrip(".").lower() == "localhost" or host.rstrip(".").lower().endswith(".localhost")


def sign(secret: str, *, delivery: str, at: int, body: bytes) -> str:
    """The header `webhook-signature`. `at`: seconds since the epoch, also sent, so that an old call cannot be played again."""
    signed = f"{delivery}.{at}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key_of(secret), signed, hashlib.sha256).digest()).decode()


def key_of(secret: str) -> bytes:
    """`whsec_` and base64, or any text."""
    if secret.startswith(SECRET_PREFIX):
        try:
            return base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
        except binascii.Error:
            pass
    return secret.encode()


@dataclass(frozen=True, slots=True)
class Delivery:
    """`delivery_id`: the ended job's, without its queue; a receiver may get it more than once."""

    delivery_id: str
    url: str
    tenant: str
    body: bytes
    attempts: int = 0


class Deliveries:
    """`pipe` is shared with whoever else lives in this process. All methods raise RedisAway."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe

    async def add(self, delivery: Delivery, *, due: float) -> None:
        """A repeat makes it due again. `due`: seconds since the epoch."""
        key = callback_key(delivery.delivery_id)
        fields = ("url", delivery.url, "tenant", delivery.tenant, "attempts", 0, "body", delivery.body)
        if not await self._pipe.command("HEXISTS", key, "body"):
            written = self._pipe.command("HSET", key, *fields)
            await asyncio.gather(written, self._pipe.command("PEXPIRE", key, int(KEPT_S * 1000)))
        await self.put_off(delivery.delivery_id, due=due)

    async def due(self, now: float, *, limit: int) -> list[Delivery]:
        """Those whose time has come, oldest first. One whose record is gone is dropped."""
        ids = await self._pipe.command("ZRANGEBYSCORE", CALLBACKS, "-inf", now, "LIMIT", 0, limit)
        found = []
        for name in ids:
            flat = await self._pipe.command("HGETALL", callback_key(name.decode()))
            held = dict(zip(flat[::2], flat[1::2], strict=True))
            if b"body" not in held:
                await self._pipe.command("ZREM", CALLBACKS, name)
                continue
            url, tenant = held[b"url"].decode(), held[b"tenant"].decode()
            found.append(Delivery(name.decode(), url, tenant, held[b"body"], int(held[b"attempts"])))
        return found

    async def put_off(self, delivery_id: str, *, due: float, failed: bool = False) -> None:
        """Until `due`. `failed`: an attempt is counted."""
        if failed:
            await self._pipe.command("HINCRBY", callback_key(delivery_id), "attempts", 1)
        await self._pipe.command("ZADD", CALLBACKS, due, delivery_id)
        await self._pipe.command("PEXPIRE", CALLBACKS, int(KEPT_S * 1000))

    async def end(self, delivery_id: str) -> None:
        """It was taken, or is given up."""
        await self._pipe.command("ZREM", CALLBACKS, delivery_id)
        await self._pipe.command("DEL", callback_key(delivery_id))

    async def secret(self, tenant: str) -> str:
        """Of a tenant whose secret is in no file: made when it is first asked for."""
        fresh = SECRET_PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()
        await self._pipe.command("HSETNX", CALLBACK_SECRETS, tenant, fresh)
        return bytes(await self._pipe.command("HGET", CALLBACK_SECRETS, tenant)).decode()
