"""The bound of docs/scheduling.md, on the real scripts with a virtual clock: any arrivals, any claims, hours in seconds."""

import math
import re
from dataclasses import dataclass, field
from typing import Any

import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker import scripts
from broker.job import Forecast, ServiceClass
from broker.keys import PoolKeys
from broker.policy import Aging, Asking, Order, Room
from broker.script import Call
from broker.scripts import Ending
from tests.broker.jobs import POOL, submission

KEYS = PoolKeys(POOL)
CLOCK = "hw:test:clock"
AGING = Aging()
TO_THE_TOP_S = {ServiceClass.P1: 10.0, ServiceClass.P2: 610.0, ServiceClass.P3: 2410.0}


@dataclass
class VirtualQueue:
    """The scripts with `now_ms` read from a key. Time is in seconds from a start."""

    client: "redis.Redis"
    now_s: float = 0.0
    scripts: dict[str, Any] = field(default_factory=dict)

    def run(self, call: Call) -> Any:
        self.client.set(CLOCK, 1_000_000_000 + round(self.now_s * 1000))
        if call.script.name not in self.scripts:
            clock = f"local function now_ms() return tonumber(redis.call('GET', '{CLOCK}')) end\n"
            source = call.script.source.decode()
            virtual = re.sub(r"local function now_ms\(\).*?\nend\n", clock, source, flags=re.DOTALL)
            assert virtual != source
            self.scripts[call.script.name] = self.client.register_script(virtual)
        return self.scripts[call.script.name](keys=call.keys, args=call.args)

    def submit(self, service_class: ServiceClass, cost_s: float) -> str:
        job = submission(service_class=service_class, forecast=Forecast(1, 1, cost_s), deadline_s=1e7)
        self.run(scripts.enqueue(job, Order()))
        return job.job_id

    def claim(self, n: int) -> list[str]:
        """Claims, and finishes at once: who is next is all that matters here."""
        claimed = []
        for row in self.run(scripts.claim(POOL, Asking("w"), room=Room(n)))[2:]:
            claimed.append(row[0].decode())
            self.run(scripts.finish(claimed[-1], row[1], ending=Ending(succeeded=True, data=b"")))
        return claimed

    def level(self, job_id: str) -> int:
        return int(self.client.hget(KEYS.job(job_id), "level") or 0)


classes = st.sampled_from([ServiceClass.P1, ServiceClass.P2, ServiceClass.P3])


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    service_class=classes,
    before=st.integers(0, 8),
    flood=st.lists(st.tuples(st.integers(1, 4), st.floats(0, 1)), min_size=30, max_size=60),
)
def test_nobody_waits_longer_than_the_bound(
    redis_url: str, service_class: ServiceClass, before: int, flood: list[tuple[int, float]]
) -> None:
    """P0 jobs flood in faster than they are claimed; older jobs of the same class wait before ours."""
    with redis.Redis.from_url(redis_url) as client:
        client.flushall()
        queue = VirtualQueue(client)
        ahead = [queue.submit(service_class, 1.0) for _ in range(before)]
        queue.now_s += 0.001
        ours = queue.submit(service_class, 1.0)
        for _ in range(200):
            queue.submit(ServiceClass.P0, 1.0)
        for step in range(4):  # one promotion a level, and the clock moves on by the level's age
            queue.now_s += AGING.ages_s[max(0, service_class - step)] + 0.001
            queue.run(scripts.claim(POOL, Asking("w"), room=Room(0)))
        assert queue.now_s <= TO_THE_TOP_S[service_class] + 0.01
        assert queue.level(ours) == 0
        bound = math.ceil((len(ahead) + 1) / AGING.share)
        for claims, (arrivals, dt_s) in enumerate(flood, start=1):
            for _ in range(arrivals):
                queue.submit(ServiceClass.P0, dt_s)
            queue.now_s += dt_s
            if ours in queue.claim(1):
                break
            assert claims < bound, f"{claims} claims at level 0 and still waiting; the bound is {bound}"
        client.flushall()


def test_promoted_batch_does_not_flood_interactive_jobs(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        queue = VirtualQueue(client)
        for _ in range(100):
            queue.submit(ServiceClass.P2, 1.0)
        for _ in range(8):
            queue.now_s += 610.0
            queue.run(scripts.claim(POOL, Asking("w"), room=Room(0)))
        urgent = [queue.submit(ServiceClass.P0, 1.0) for _ in range(40)]
        taken = queue.claim(50)
        assert sum(job_id in urgent for job_id in taken) == 40
        client.flushall()
