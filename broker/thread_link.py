"""Scripts for a thread of its own, without an event loop: what the heartbeat needs to be independent of all the rest."""

import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError
from redis.retry import Retry

from broker import seek
from broker.errors import RedisAway
from broker.script import Call
from broker.topology import parse, slot_of, tag_of

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

    def run_all(self, calls: Sequence[Call]) -> list[Any]:
        """All answers, by one pipeline. Raises as `run`."""
        if len(calls) == 1:
            return [self.run(calls[0])]
        try:
            if self._client is None:
                self._client = self._connect(self._find())
            with self._client.pipeline(transaction=False) as pipeline:
                for call in calls:
                    pipeline.execute_command(*call.evalsha())  # type: ignore[no-untyped-call]
                answers = pipeline.execute(raise_on_error=False)
        except (RedisError, OSError):
            self.close()
            raise
        return [
            self.run(call) if isinstance(answer, RedisError) else answer
            for call, answer in zip(calls, answers, strict=True)
        ]

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
        topology = self._topology
        if topology.kind == "single":
            return topology.url
        hosts = random.sample(self._hosts, len(self._hosts))
        if topology.kind == "sentinel":
            return self._ask_all(seek.master(topology, hosts)).url
        found = self._ask_all(seek.cluster_map(topology, hosts))
        self._hosts = found.hosts
        node = found.slots.at(slot_of(self._key))
        if node is None:
            raise RedisAway("no node of the cluster has the heartbeat's slot now")
        return node

    def _ask_all(self, search: seek.Search[seek.T]) -> seek.T:
        """What is found within the time-out. Raises RedisAway."""
        end = time.monotonic() + self._timeout_s
        try:
            question = next(search)
            while time.monotonic() < end:
                try:
                    answer = self._ask(*question)
                except seek.TROUBLE as error:
                    question = search.throw(error)
                else:
                    question = search.send(answer)
        except StopIteration as stop:
            found: seek.T = stop.value
            return found
        raise RedisAway("the heartbeat's master was not found in time")

    def _ask(self, url: str, command: tuple[str, ...]) -> Any:
        """The raw answer."""
        with self._connect(url, share=SHARE) as client:
            client.response_callbacks.clear()
            return client.execute_command(*command)


class ThreadLinks:
    """The same for calls of several queues: one link, or in a cluster one for each, which are asked at the same time."""

    def __init__(self, url: str, *, timeout_s: float) -> None:
        self._url = url
        self._timeout_s = timeout_s
        self._in_cluster = parse(url).kind == "cluster"
        self._links: dict[str, ThreadLink] = {}

    def run_all(self, calls: Sequence[Call]) -> list[Any]:
        """What each call was answered, or the RedisError, OSError or RedisAway that it met."""
        if not self._in_cluster:
            return self._ask(self._link(""), calls)
        links = [self._link(call.keys[0]) for call in calls]
        if len(calls) == 1:
            return self._ask(links[0], calls)
        with ThreadPoolExecutor(len(calls), thread_name_prefix="heartbeat") as threads:
            return [answers[0] for answers in threads.map(self._ask, links, [[call] for call in calls])]

    def close(self) -> None:
        for link in self._links.values():
            link.close()

    def _link(self, key: str) -> ThreadLink:
        tag = tag_of(key) if key else ""
        if tag not in self._links:
            self._links[tag] = ThreadLink(self._url, key=key, timeout_s=self._timeout_s)
        return self._links[tag]

    @staticmethod
    def _ask(link: ThreadLink, calls: Sequence[Call]) -> list[Any]:
        try:
            return link.run_all(calls)
        except (RedisError, OSError, RedisAway) as error:
            return [error] * len(calls)
