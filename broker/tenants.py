"""Who submits work: tenants, the keys that they are known by, and what they get. Read from `headway.yaml`.

A key is compared by its digest, so that the file may hold digests in place of keys. The API makes tenants of keys
(`api/keyring.py`); the batch feeder finds a batch's tenant by its name.
"""

import hashlib
import re
from dataclasses import dataclass, replace
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, model_validator

from broker.class_limits import ClassName
from broker.job import ServiceClass
from broker.limits import Quota, Scope

DEFAULT = "default"  # the tenant of HEADWAY_API_KEYS, and of everybody where no keys are set
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
NAME_PATTERN = re.compile(NAME)
TENANT_SCOPE = "tenant"  # what its keys share
# What its requests do while nobody serves their pool: go to the pool's fallback, be refused, or wait
DEGRADE, FAIL, WAIT = FALLBACKS = ("degrade", "fail", "wait")
NOTHING = "-"  # no pool has this name


def _digest(text: str) -> str:
    if re.fullmatch("[0-9a-f]{64}", text) is None:
        raise ValueError("is no SHA-256 of a key (64 digits, 0-9 and a-f)")
    return text


def _name(text: str) -> str:
    if NAME_PATTERN.fullmatch(text) is None:
        raise ValueError("is no tenant's name (64 of letters, digits, '.', '_', '-')")
    return text


Digest = Annotated[str, AfterValidator(_digest)]


@dataclass(frozen=True, slots=True)
class Access:
    """What a key may be used for. Empty: every class, every pool and route. `admin`: also to steer, and to reload."""

    classes: frozenset[ServiceClass] = frozenset()
    pools: frozenset[str] = frozenset()
    admin: bool = False

    def within(self, other: "Access") -> "Access":
        """What both allow. Two lists of pools with nothing in common allow none."""
        classes = (
            self.classes & other.classes if self.classes and other.classes else self.classes or other.classes
        )
        pools = self.pools & other.pools if self.pools and other.pools else self.pools or other.pools
        if (self.classes and other.classes and not classes) or (self.pools and other.pools and not pools):
            return Access(frozenset(), frozenset({NOTHING}), admin=False)
        return Access(classes, pools, self.admin)


@dataclass(frozen=True, slots=True)
class Tenant:
    """`weight`: its share of a class; 0: it is not charged. `max_running`: of its jobs at a time; 0: any number.

    `scopes`: the limits that the key it came with is under.
    """

    name: str = DEFAULT
    weight: float = 0.0
    max_running: int = 0
    default_class: ServiceClass | None = None
    access: Access = Access()
    scopes: tuple[Scope, ...] = ()
    fallback: str = DEGRADE

    def with_key(self, key_id: str, quota: Quota, *, access: Access | None = None) -> "Tenant":
        """As one of its keys is known: also under the limits of that key, and with no more than what it may."""
        scopes = (*self.scopes, Scope(key_id, quota)) if quota.is_set else self.scopes
        return replace(self, scopes=scopes, access=access.within(self.access) if access else self.access)


ANYBODY = Tenant()


class TenantConfig(BaseModel):
    """One entry of `tenants`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, AfterValidator(_name)]
    keys: tuple[SecretStr, ...] = ()
    key_env: str | None = Field(
        default=None, min_length=1
    )  # a variable that holds the key, or several with commas
    sha256: tuple[Digest, ...] = ()  # of keys
    weight: float = Field(default=1.0, strict=True, ge=0.001, le=1000)
    max_running: int | None = Field(default=None, strict=True, ge=1)
    default_class: Literal["P0", "P1", "P2", "P3"] | None = None
    limits: Quota = Quota()  # of all its keys together
    key_limits: Quota = Quota()  # of each of its keys
    classes: tuple[ClassName, ...] = ()  # that it may use; none: all
    pools: tuple[str, ...] = ()  # and routes, that it may use; none: all
    fallback: Literal["degrade", "fail", "wait"] = "degrade"  # while nobody serves a pool
    callback_secret: SecretStr | None = Field(default=None, min_length=8)  # signs its webhooks
    admin: bool = False  # may steer pools and workers, reload, and see everybody's dead letters

    @model_validator(mode="after")
    def _keys_are_keys(self) -> Self:
        if any(not key.get_secret_value() for key in self.keys):
            raise ValueError(f"a key of {self.name!r} is empty")
        return self

    @property
    def tenant(self) -> Tenant:
        wanted = None if self.default_class is None else ServiceClass[self.default_class]
        classes = frozenset(ServiceClass[name] for name in self.classes)
        access = Access(classes, frozenset(self.pools), self.admin)
        scopes = (Scope(TENANT_SCOPE, self.limits),) if self.limits.is_set else ()
        return Tenant(self.name, self.weight, self.max_running or 0, wanted, access, scopes, self.fallback)

    @property
    def named_digests(self) -> frozenset[bytes]:
        """Of the keys that stand in the file; those in variables are known to who reads them (`api/keyring.py`)."""
        return frozenset(self.digests(""))

    def of_key(self, digest: bytes) -> Tenant:
        return self.tenant.with_key(key_id_of(digest), self.key_limits)

    def digests(self, variable: str) -> list[bytes]:
        """Of all its keys. `variable`: what `key_env` names holds."""
        texts = [key.get_secret_value() for key in self.keys]
        texts += [key for part in variable.split(",") if (key := part.strip())]
        return [digest_of(text.encode()) for text in texts] + [bytes.fromhex(each) for each in self.sha256]


def key_id_of(digest: bytes) -> str:
    """What a key is called where it must not be told."""
    return f"key_{digest.hex()[:12]}"


def digest_of(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
