"""A route's choice for one request: prediction, the load of both pools, and where the conversation is already.

What needs Redis (the conversation's pool, what feedback has taught) is cached in the process; where it cannot be had in
time, the choice is made without it.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from api.snapshots import FleetCache, Snapshot
from broker import request_checks
from broker.connection import Pipe
from broker.errors import QueueFull, RedisAway
from broker.feedback import floors
from broker.heirs import Plan
from broker.job import Ahead, ServiceClass
from broker.keys import sticky_key
from broker.placement import Placed, PoolLoad, Wanted, place
from broker.route_config import RouteConfig
from broker.script import ms
from predictor.features import Features
from predictor.prefix import conversation_key
from predictor.router import Router

log = logging.getLogger("headway.api")
MOST_REMEMBERED = 20_000  # conversations, in the process
PATIENCE_S = 0.05  # with Redis, for a request's conversation
FRESH_S = 30.0  # a conversation's pool is believed without asking: another process may have had a later turn
LESSONS_S = 30.0  # between looks at what feedback has taught


@dataclass(frozen=True, slots=True)
class Request:
    """What a choice is made by."""

    endpoint: str
    document: Mapping[str, Any]
    tenant: str
    service_class: ServiceClass


@dataclass(frozen=True, slots=True)
class Choice:
    """Where a request goes. `heir`: the pool that it may be handed on to; "": it may not. `key`: of its conversation.
    `features`: read of the request, if they were."""

    placed: Placed
    route: RouteConfig
    heir: str = ""
    window: int = 0
    floor: float = 0.0
    key: str = ""
    features: Features | None = None

    def plan(self, *, weight: float, priority: int) -> Plan:
        return Plan(self.window, self.floor, weight, priority)


@dataclass(slots=True)
class Conversations:
    """Which pool each is in: in Redis for all processes, the latest ones here too."""

    pipe: Pipe
    _known: OrderedDict[str, tuple[str, float]] = field(default_factory=OrderedDict)

    async def pool(self, key: str) -> str:
        """ "" if it is not known, or Redis does not say in time."""
        known, until = self._known.get(key, ("", 0.0))
        if until > asyncio.get_running_loop().time():
            return known
        try:
            async with asyncio.timeout(PATIENCE_S):
                raw = await self.pipe.command("GET", key)
        except (RedisAway, TimeoutError):
            return ""
        return raw.decode() if raw else ""

    async def keep(self, key: str, pool: str, *, ttl_s: float) -> None:
        """For `ttl_s` from now."""
        self._known[key] = (pool, asyncio.get_running_loop().time() + min(ttl_s, FRESH_S))
        self._known.move_to_end(key)
        if len(self._known) > MOST_REMEMBERED:
            self._known.popitem(last=False)
        try:
            await self.pipe.command("SET", key, pool, "PX", ms(ttl_s))
        except (RedisAway, QueueFull) as error:
            log.debug("a conversation's pool is not kept: %s", error)


@dataclass(slots=True)
class Lessons:
    """Floors and thresholds that feedback has taught, at most LESSONS_S old."""

    pipe: Pipe
    _known: dict[str, float] = field(default_factory=dict)
    _asked_at: float = float("-inf")

    async def get(self, route: str, kind: str) -> float | None:
        """`kind` "*": the route's own threshold."""
        now = asyncio.get_running_loop().time()
        if now - self._asked_at > LESSONS_S:
            self._asked_at = now
            try:
                async with asyncio.timeout(PATIENCE_S):
                    self._known = await floors(self.pipe)
            except (RedisAway, TimeoutError, ValueError) as error:
                log.debug("floors are not read anew: %s", error)
        return self._known.get(f"{route} {kind}")

    def forget(self) -> None:
        """Has them read anew."""
        self._asked_at = float("-inf")


class Chooser:
    """One per process."""

    def __init__(self, pipe: Pipe, fleet: FleetCache, *, router: Router) -> None:
        self.conversations = Conversations(pipe)
        self.lessons = Lessons(pipe)
        self._fleet = fleet
        self._router = router

    async def choose(self, route: RouteConfig, request: Request) -> Choice:
        """Raises RedisAway, if nothing is known of the fleet."""
        small, large = await asyncio.gather(
            *(self._load(pool, request.service_class) for pool in (route.small, route.large))
        )
        (wanted, features), key = self._router.read(request.document), self._key(route, request)
        if key:
            wanted = Wanted(wanted.p, wanted.kind, await self._sticky(key, request))
        learned = await self.lessons.get(route.name, "*") if route.target.quality is not None else None
        rule = self._router.rule(route, learned=learned)
        if request.endpoint == request_checks.EMBEDDINGS:  # vectors of two models cannot be compared
            return Choice(place(rule, Wanted(1.0, wanted.kind, route.small), small=small, large=large), route)
        placed = place(rule, wanted, small=small, large=large)
        choice = Choice(placed, route, key=key, features=features)
        if placed.pool != route.small or not route.escalate or not large.open:
            return choice
        window, floor = await self._cascade(route, request, kind=placed.kind)
        return replace(choice, heir=route.large, window=window, floor=floor)

    async def keep(self, choice: Choice, pool: str) -> None:
        """The conversation goes on in that pool."""
        if choice.key:
            await self.conversations.keep(choice.key, pool, ttl_s=choice.route.sticky_s)

    def _key(self, route: RouteConfig, request: Request) -> str:
        conversation = conversation_key(request.document) if route.sticky_s else None
        return (
            "" if conversation is None else sticky_key(request.tenant, route.name, conversation=conversation)
        )

    async def _sticky(self, key: str, request: Request) -> str:
        """Of a conversation that has an answer already; a first turn is judged anew, and as it was the last time."""
        messages = request.document.get("messages")
        if isinstance(messages, list) and any(_is_answer(message) for message in messages):
            return await self.conversations.pool(key)
        return ""

    async def _cascade(self, route: RouteConfig, request: Request, *, kind: str) -> tuple[int, float]:
        """Window and floor of a verdict by confidence; (0, 0.0): none."""
        cascade = route.cascade
        if cascade is None or not cascade.judges(kind, request.document):
            return 0, 0.0
        learned = await self.lessons.get(route.name, kind)
        return cascade.window, cascade.floor if learned is None else learned

    async def _load(self, pool: str, service_class: ServiceClass) -> PoolLoad:
        room = await self._fleet.look(pool)
        return PoolLoad(
            room.view.served and not room.view.draining, self._wait_s(pool, room, service_class=service_class)
        )

    def _wait_s(self, pool: str, room: Snapshot, *, service_class: ServiceClass) -> float:
        classes, counters = range(service_class + 1), room.view.counters
        queues = len(self._fleet.shards.queues(pool))
        jobs = sum(counters.get(f"queued:{c}", 0.0) for c in classes) / queues
        run_s = sum(counters.get(f"queued_ms:{c}", 0.0) for c in classes) / 1000 / queues
        return room.start_s(Ahead(round(jobs), run_s), queues=queues) or 0.0


def _is_answer(message: object) -> bool:
    return isinstance(message, dict) and message.get("role") == "assistant"
