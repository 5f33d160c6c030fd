"""API keys that are made while Headway runs (`headway keys`), beside those that `headway.yaml` lists. Kept in Redis for good.

A key is shown once. What is kept is its SHA-256: with 192 random bits there is nothing to guess, so nothing slower is needed.
"""

import secrets
import time
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import orjson

from broker.connection import Pipe
from broker.errors import BrokerError
from broker.job import ServiceClass
from broker.keys import API_KEYS, API_KEYS_VERSION
from broker.limits import Quota
from broker.tenants import DEFAULT, Access, digest_of, key_id_of

PREFIX = "hw-"
BYTES = 24


class UnknownKey(BrokerError):
    """No key has this id."""


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """`digest`: SHA-256 of the key, hexadecimal. `created_at`: seconds since the epoch, of whoever made it."""

    digest: str
    tenant: str = DEFAULT
    name: str = ""
    access: Access = field(default_factory=Access)
    quota: Quota = field(default_factory=Quota)
    created_at: int = 0

    @property
    def key_id(self) -> str:
        return key_id_of(bytes.fromhex(self.digest))

    def dump(self) -> bytes:
        return orjson.dumps(
            asdict(self)
            | {
                "access": {
                    "classes": sorted(c.name for c in self.access.classes),
                    "pools": sorted(self.access.pools),
                    "admin": self.access.admin,
                },
                "quota": self.quota.model_dump(exclude_none=True),
            },
            default=str,
        )

    @classmethod
    def load(cls, data: bytes) -> Self:
        fields: dict[str, Any] = orjson.loads(data)
        may = fields.pop("access")
        classes = frozenset(ServiceClass[name] for name in may["classes"])
        access = Access(classes, frozenset(may["pools"]), may["admin"])
        return cls(**fields | {"access": access, "quota": Quota(**fields["quota"])})


class KeyStore:
    """`pipe` is shared with whoever else lives in this process. All methods raise RedisAway."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe

    async def version(self) -> int:
        """Rises with every change; 0: there has never been a key."""
        return int(await self._pipe.command("GET", API_KEYS_VERSION) or 0)

    async def create(self, tenant: str, *, name: str, access: Access, quota: Quota) -> tuple[str, KeyRecord]:
        """The key, which is known to nobody else from here on, and what is kept of it."""
        key = PREFIX + secrets.token_urlsafe(BYTES)
        record = KeyRecord(digest_of(key.encode()).hex(), tenant, name, access, quota, int(time.time()))
        await self._pipe.command("HSET", API_KEYS, record.digest, record.dump())
        await self._pipe.command("INCR", API_KEYS_VERSION)
        return key, record

    async def all(self) -> list[KeyRecord]:
        """Oldest first."""
        found = await self._pipe.command("HVALS", API_KEYS)
        return sorted(map(KeyRecord.load, found), key=lambda record: (record.created_at, record.digest))

    async def revoke(self, key_id: str) -> KeyRecord:
        """Raises UnknownKey."""
        for record in await self.all():
            if record.key_id == key_id:
                await self._pipe.command("HDEL", API_KEYS, record.digest)
                await self._pipe.command("INCR", API_KEYS_VERSION)
                return record
        raise UnknownKey(f"there is no key {key_id[:80]!r}; `headway keys list` shows all")
