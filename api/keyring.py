"""Which tenant an API key belongs to. The gate asks it for every request; what it knows may change while it runs."""

import hmac
from collections.abc import Iterable, Mapping
from dataclasses import replace

from broker.api_keys import KeyRecord, KeyStore
from broker.config import Config
from broker.connection import Pipe
from broker.errors import ConfigError
from broker.settings import Settings, named_variable
from broker.tenants import DEFAULT, Access, Tenant, digest_of, key_id_of

SHORT = 4  # bytes of a digest by which it is looked up; the whole is compared in constant time


class Keyring:
    """HEADWAY_API_KEYS are those of the tenant `default`, and of operators. Without any key everybody is that tenant."""

    def __init__(self, settings: Settings, config: Config) -> None:
        """Raises ConfigError for a variable without a key, and a key of two tenants. Whether there are keys: `check_door`."""
        self._settings = settings
        self._made: tuple[KeyRecord, ...] = ()
        self._closed = False
        self._tenants: dict[bytes, Tenant] = {}
        self._short: dict[bytes, list[bytes]] = {}
        self._take(config, _configured(settings, config))

    def adopt(self, config: Config) -> None:
        """Takes another configuration. Raises ConfigError as above, and as `check_door`; then nothing has changed."""
        found = _configured(self._settings, config)
        self._check(found[1])
        self._take(config, found)

    def check_door(self) -> None:
        """Before anybody is let in, when the keys in Redis are known. Raises ConfigError for an open address without keys."""
        self._check(self._own)

    def _check(self, own: Mapping[bytes, Tenant]) -> None:
        if not (own or self._closed or self._settings.loopback):
            raise ConfigError(
                f"HEADWAY_HOST={self._settings.host} is open to the network: set HEADWAY_API_KEYS (comma separated), name "
                "tenants in headway.yaml, or make a key (headway keys create) first; or listen on 127.0.0.1"
            )

    def _take(self, config: Config, found: tuple[Tenant, dict[bytes, Tenant]]) -> None:
        self._config, (self.anybody, self._own) = config, found
        self._put_together()

    def learn(self, made: Iterable[KeyRecord], *, ever: bool) -> None:
        """Takes the keys that are in Redis. `ever`: there has been one; then the door stays shut, also without any."""
        self._made, self._closed = tuple(made), ever
        self._put_together()

    def _put_together(self) -> None:
        tenants = {
            bytes.fromhex(record.digest): self._config.tenant(record.tenant).with_key(
                record.key_id, record.quota, access=record.access
            )
            for record in self._made
        }
        self._tenants = tenants | self._own
        self._short = {}
        for digest in self._tenants:
            self._short.setdefault(digest[:SHORT], []).append(digest)

    @property
    def is_open(self) -> bool:
        """Whether nobody needs a key."""
        return not self._tenants and not self._closed

    @property
    def limits_anybody(self) -> bool:
        """Whether any key or tenant has limits."""
        return bool(self.anybody.scopes) or any(tenant.scopes for tenant in self._tenants.values())

    def find(self, key: bytes) -> Tenant | None:
        """Whose it is."""
        given, found = digest_of(key), None
        for digest in self._short.get(given[:SHORT], ()):
            if hmac.compare_digest(digest, given):
                found = self._tenants[digest]
        return found


async def check_door(settings: Settings, config: Config, *, pipe: Pipe) -> None:
    """What the API would refuse to start for, without one. Raises ConfigError; RedisAway: then nobody knows."""
    ring = Keyring(settings, config)
    ring.learn((), ever=await KeyStore(pipe).version() > 0)
    ring.check_door()


def _configured(settings: Settings, config: Config) -> tuple[Tenant, dict[bytes, Tenant]]:
    """Who a request without a key is of; tenants by the digests of the keys that the settings and `headway.yaml` name.

    Raises ConfigError.
    """
    anybody = replace(config.tenant(DEFAULT), access=Access(admin=True))
    entry = next((each for each in config.tenants if each.name == DEFAULT), None)
    tenants: dict[bytes, Tenant] = {}
    for key in settings.api_keys:
        digest = digest_of(key.get_secret_value().encode())
        tenants[digest] = anybody.with_key(key_id_of(digest), entry.key_limits) if entry else anybody
    for each in config.tenants:
        held = named_variable(each.key_env) if each.key_env else ""
        if each.key_env and not held.strip(" ,"):
            raise ConfigError(f"tenants: {each.key_env}, the key of {each.name!r}, is not set")
        for digest in each.digests(held):
            other = tenants.setdefault(digest, each.of_key(digest))
            if other.name != each.name:
                raise ConfigError(f"tenants: {other.name!r} and {each.name!r} have a key in common")
    return anybody, tenants
