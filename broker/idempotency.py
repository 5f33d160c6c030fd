"""What a caller's idempotency key stands for, from its first use on. Written before the work that it names is queued."""

from broker.connection import Pipe
from broker.keys import idempotency_key
from broker.script import ms


async def bind(pipe: Pipe, tenant: str, *, key: str, value: bytes, ttl_s: float) -> bytes:
    """The value that the tenant's key is bound to: this one, or that of an earlier call less than `ttl_s` ago.

    Of any number of calls at once, one binds. Raises RedisAway: then call again, nothing is lost or bound twice.
    """
    name = idempotency_key(tenant, key)
    while True:
        if await pipe.command("SET", name, value, "NX", "PX", ms(ttl_s)):
            return value
        there = await pipe.command("GET", name)
        if there is not None:
            return bytes(there)


async def keep(pipe: Pipe, tenant: str, *, key: str, ttl_s: float) -> None:
    """Puts off when the key is forgotten."""
    await pipe.command("PEXPIRE", idempotency_key(tenant, key), ms(ttl_s))
