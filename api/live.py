"""What may change while the API runs: `headway.yaml`, and the keys in Redis. One per process.

The file is looked at once a second, and read when it has changed or an operator asks (`POST /admin/reload`). One that is
wrong is refused as a whole, and what was read before stays.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from api.keyring import Keyring
from api.snapshots import FleetCache
from broker.api_keys import KeyStore
from broker.config import DEFAULT_FILE, Config, ModelConfig, load_config
from broker.errors import ConfigError, RedisAway
from broker.policy import QueueLimits
from broker.settings import Settings

log = logging.getLogger("headway.live")
LOOK_S = 0.5
BY_WORKERS = (
    "engine",
    "dialect",
    "model",
    "slots",
    "kv_tokens",
    "shards",
    "speed",
    "gpus",
    "gpu_hour_usd",
    "api_key",
)
Stamp = tuple[int, int, int] | None


@dataclass(frozen=True, slots=True)
class Change:
    """What another configuration means. `restart`: what running processes keep as they have read it."""

    changed: tuple[str, ...]
    restart: tuple[str, ...]


class Live:
    """`config` is what counts now. Raises ConfigError as `Keyring`."""

    def __init__(self, settings: Settings, config: Config, *, keyring: Keyring, fleet: FleetCache) -> None:
        self.config = config
        self.keyring = keyring
        self._settings = settings
        self._fleet = fleet
        self._limits = self._limits_of(config)
        self._stamp = self._look_at_file()
        self._keys_version = 0

    def queue_limits(self, queue: str) -> QueueLimits:
        return self._limits(queue)

    def reload(self) -> Change:
        """Reads the file again. Raises ConfigError; then nothing has changed."""
        self._stamp = self._look_at_file()
        config = load_config(self._settings)
        self.keyring.adopt(config)
        change = compare(self.config, config)
        self.config, self._limits = config, self._limits_of(config)
        self._fleet.adopt(config)
        return change

    async def learn_keys(self, keys: KeyStore) -> None:
        """Raises RedisAway."""
        version = await keys.version()
        if version != self._keys_version:
            self.keyring.learn(await keys.all(), ever=True)
            self._keys_version = version

    async def run(self, keys: KeyStore, *, watch_file: bool) -> None:
        """For ever. What cannot be read stays as it was."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self.learn_keys(keys)
            except RedisAway as error:
                log.debug("keys are looked at later: %s", error)
            if watch_file and self._look_at_file() != self._stamp:
                self._reload_changed()

    def _reload_changed(self) -> None:
        try:
            change = self.reload()
        except ConfigError as error:
            log.error("the file that was read before stays in force: %s", error)  # noqa: TRY400 - no fault of ours
            return
        log.info("configuration read again; changed: %s", ", ".join(change.changed) or "nothing")
        for each in change.restart:
            log.warning("not in force yet: %s", each)

    def _look_at_file(self) -> Stamp:
        path: Path = self._settings.config or DEFAULT_FILE
        try:
            found = path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _limits_of(self, config: Config) -> Callable[[str], QueueLimits]:
        return config.limits_of(max_queued=self._settings.max_queued)


def compare(before: Config, after: Config) -> Change:
    """What has changed, and what of it takes more than this."""
    changed = [name for name in Config.model_fields if getattr(before, name) != getattr(after, name)]
    old, new = ({model.pool: model for model in config.models} for config in (before, after))
    restart = [
        f"models: {pool} is new; `headway up` starts its workers when it starts (or: headway worker --pool {pool})"
        for pool in new.keys() - old.keys()
    ]
    restart += [
        f"models: {pool} is gone; its workers run until they are stopped" for pool in old.keys() - new.keys()
    ]
    for pool in old.keys() & new.keys():
        restart += _model_changes(old[pool], new[pool])
    if before.tenants != after.tenants:
        restart.append("tenants: weights of batches that run; the Celery worker reads them when it starts")
    return Change(tuple(changed), tuple(sorted(restart)))


def _model_changes(old: ModelConfig, new: ModelConfig) -> list[str]:
    names = [name for name in BY_WORKERS if getattr(old, name) != getattr(new, name)]
    found = []
    if names:
        found.append(f"models: {', '.join(names)} of {new.pool}; its workers read that when they start")
    if old.tokenizer != new.tokenizer:
        found.append(f"models: tokenizer of {new.pool}; the API reads it when it starts")
    return found
