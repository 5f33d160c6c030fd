"""Scripts for a thread of its own, without an event loop: what the heartbeat needs to be independent of all the rest."""

import random
import time
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError
from redis.retry import Retry

from broker.errors import RedisAway
from broker.script import Call
from broker.topology import Address, parse, read_slots, slot_of

SHARE = 0.3  # of the time-out, for one of the hosts that may know where the server is


class ThreadLink:
    """Runs scripts on the server that has `key`, one at a time, one try each: only the caller knows what time is left.

    Not for two threads at once. `timeout_s` bounds each step: finding the server, connecting, the answer.
    """

    def __init__(self, url: str, *, key: str, timeout_s: float) -> None:
        self._topology = parse(url)
        self._key = key
        self._timeout_s = timeout_s
        self._hosts = list(self._topology.hosts)
        self._client: redis.Redis | None = None

    def run(self, call: Call) -> Any:
        """Raises RedisError, OSError, RedisAway. After an error the next call looks for the server again."""
        try:
            if self._client is None:
                self._client = self._connect(self._find())
            try:
                return self._client.execute_command(*call.evalsha())  # type: ignore[no-untyped-call]
            except NoScriptError:
                return self._client.execute_command(*call.eval())  # type: ignore[no-untyped-call]
        except (RedisError, OSError):
            self.close()
            raise

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _connect(self, url: str, *, share: float = 1.0) -> redis.Redis:
        timeout_s = self._timeout_s * share
        return redis.Redis.from_url(
            url,
            protocol=2,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 0),
        )

    def _find(self) -> str:
        """URL of the server, as `locate.Locator.find`."""
        if self._topology.kind == "single":
            return self._topology.url
        ask = self._ask_sentinel if self._topology.kind == "sentinel" else self._ask_node
        trouble, end = "no answer", time.monotonic() + self._timeout_s
        for host in random.sample(self._hosts, len(self._hosts)):
            if time.monotonic() > end:
                break
            try:
                found = ask(host)
            except (RedisError, OSError) as error:
                trouble = f"{host[0]}:{host[1]}: {error}"
                continue
            if found:
                return found
            trouble = f"{host[0]}:{host[1]} does not know it"
        raise RedisAway(f"no master for the heartbeat was found ({trouble})")

    def _ask_sentinel(self, host: Address) -> str | None:
        with self._connect(self._topology.sentinel(host), share=SHARE) as sentinel:
            answer = sentinel.sentinel_get_master_addr_by_name(self._topology.service)
        if not answer:
            return None
        name = answer[0].decode() if isinstance(answer[0], bytes) else str(answer[0])
        return self._topology.node((name, int(answer[1])))

    def _ask_node(self, host: Address) -> str | None:
        with self._connect(self._topology.node(host), share=SHARE) as node:
            node.response_callbacks.clear()
            rows = node.execute_command("CLUSTER SLOTS")
        others = {(peer[0].decode() or host[0], int(peer[1])) for row in rows for peer in row[2:]}
        self._hosts = [*self._topology.hosts, *sorted(others - set(self._topology.hosts))]
        return read_slots(rows, self._topology, asked=host).at(slot_of(self._key))
