"""Compares Redis with the model after each step of the state machine: invariants 1, 4, 5, 8 and 10 of the design."""

from collections import Counter
from typing import Any

import redis

from broker.keys import is_permanent
from tests.broker.jobs import KEYS, Backdoor
from tests.broker.queue_model import Job, Model

PLACES = {"delayed": "delayed", "leases": "leased"}


class Ear:
    """Hears whatever the scripts publish."""

    def __init__(self, client: redis.Redis) -> None:
        self._pubsub = client.pubsub()  # type: ignore[no-untyped-call]
        self._pubsub.psubscribe(f"{KEYS.prefix}*")
        self.ends: Counter[tuple[str, str]] = Counter()
        self.chunks: Counter[str] = Counter()
        self.aborts: Counter[tuple[str, int]] = Counter()

    def listen(self) -> None:
        """Takes everything that was published before now: the answer to a ping comes after it."""
        self._pubsub.ping()
        while (item := self._pubsub.get_message(timeout=5)) is not None and item["type"] != "pong":
            if item["type"] == "pmessage":
                self._note(item)

    def _note(self, item: dict[str, Any]) -> None:
        words = item["data"].partition(b"\n")[0].decode().split(" ")
        if item["channel"].decode() == KEYS.control:
            assert words[0] == "abort"
            self.aborts[words[1], int(words[2])] += 1
        elif words[1] == "done":
            self.ends[words[0], words[5]] += 1
        elif words[1] == "chunk":
            self.chunks[words[0]] += 1

    def close(self) -> None:
        self._pubsub.close()


def check_sets(model: Model, backdoor: Backdoor) -> None:
    """Queued: in one of ready and delayed. Running: a lease. Ended: in none."""
    for c in range(4):
        order = [job.job_id for job in model.ready() if job.service_class == c]
        assert backdoor.members(f"ready:{c}") == order
    for suffix, place in PLACES.items():
        assert set(backdoor.members(suffix)) == model.in_place(place)
    timed = set(backdoor.members("deadlines")) | set(backdoor.members("aging"))
    assert timed == {job.job_id for job in model.jobs.values() if job.pending}
    assert set(backdoor.members("dead")) == {
        j.job_id for j in model.jobs.values() if j.dead and not j.redriven
    }
    if model.ready():
        assert backdoor.members("marker"), "ready jobs and nothing that wakes a worker"


def check_stats(model: Model, backdoor: Backdoor) -> None:
    """All but a mean, and how far the reaper's round is."""
    stats = backdoor.stats().items()
    counted = {
        name: float(value) for name, value in stats if name != "run_ms" and not name.startswith("walk:")
    }
    expected = model.stats + model.waiting()
    differ = {name: (counted.get(name, 0), expected[name]) for name in {*counted, *expected}}
    wrong = {name: pair for name, pair in differ.items() if pair[0] != pair[1]}
    assert not wrong, f"(counted, expected): {wrong}"


def check_keys(model: Model, backdoor: Backdoor) -> None:
    """Without a TTL: permanent keys, and those of jobs that have not ended."""
    pending = {job.job_id for job in model.jobs.values() if job.pending}
    for key in backdoor.keys_without_ttl():
        assert is_permanent(key) or key.partition("}:")[2].partition(":")[2] in pending, key


def check_job(job: Job, backdoor: Backdoor) -> None:
    pipeline = backdoor.client.pipeline(transaction=True)
    pipeline.hgetall(KEYS.job(job.job_id))
    pipeline.ttl(KEYS.job(job.job_id))
    pipeline.ttl(KEYS.payload(job.job_id))
    pipeline.get(KEYS.result(job.job_id))
    pipeline.xrange(KEYS.output(job.job_id))
    pipeline.llen(KEYS.history(job.job_id))
    raw, ttl, payload_ttl, result, entries, earlier_attempts = pipeline.execute()
    names = ("status", "token", "seq", "attempts", "errors", "deaths")
    found = {name: raw.get(name.encode(), b"0").decode() for name in names}  # zero is not stored
    assert found == {name: str(getattr(job, name)) for name in names}
    assert float(raw[b"score"]) == job.score
    assert (ttl == -1) == job.pending
    kept = job.dead and not job.redriven
    assert (payload_ttl == -1, payload_ttl > 0) == (job.pending, kept)
    assert result == job.data
    kept_chunks = [(entry_id.decode(), fields[b"d"]) for entry_id, fields in entries]
    assert kept_chunks == [(f"{token}-{seq}", data) for token, seq, data in job.chunks]
    assert earlier_attempts == min(20, job.returns + job.deaths)


def check_told(model: Model, ear: Ear) -> None:
    """Every end is told once, under the one status the job has; an engine is told to stop when its work is void."""
    ear.listen()
    assert ear.ends == Counter((job.job_id, job.status) for job in model.jobs.values() if not job.pending)
    assert ear.chunks == Counter({job.job_id: len(job.chunks) for job in model.jobs.values() if job.chunks})
    assert ear.aborts == model.aborts
