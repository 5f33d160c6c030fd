"""One pool as it stands in Redis: read whole, between two steps of a walk."""

from dataclasses import dataclass

import redis

from tests.broker.jobs import KEYS

Hash = dict[str, str]
LEVELS = ("ready:0", "ready:1", "ready:2", "ready:3", "aged:0", "aged:1", "aged:2")


@dataclass(frozen=True)
class State:
    """`sets`: suffix -> member -> score. `ttl_ms`: -1 for a key without one; by suffix."""

    jobs: dict[str, Hash]
    sets: dict[str, dict[str, float]]
    stats: Hash
    running: dict[str, int]
    ttl_ms: dict[str, int]

    @classmethod
    def read(cls, client: "redis.Redis") -> "State":
        keys = sorted(client.scan_iter(match=f"{KEYS.prefix}*", count=1000))
        suffixes = [key.decode().removeprefix(KEYS.prefix) for key in keys]
        pipeline = client.pipeline(transaction=False)  # memory full: no MULTI
        for key, suffix in zip(keys, suffixes, strict=True):
            pipeline.pttl(key)
            if suffix.startswith("job:") or suffix in ("stats", "running"):
                pipeline.hgetall(key)
            elif is_set(suffix):
                pipeline.zrange(key, 0, -1, withscores=True)
            else:
                pipeline.exists(key)
        answers = pipeline.execute()
        found = dict(zip(suffixes, answers[1::2], strict=True))
        return cls(
            jobs={s.removeprefix("job:"): text(h) for s, h in found.items() if s.startswith("job:")},
            sets={s: {m.decode(): score for m, score in z} for s, z in found.items() if is_set(s)},
            stats=text(found.get("stats", {})),
            running={name: int(n) for name, n in text(found.get("running", {})).items()},
            ttl_ms=dict(zip(suffixes, answers[::2], strict=True)),
        )

    def of(self, suffix: str) -> dict[str, float]:
        return self.sets.get(suffix, {})

    def places(self, job_id: str) -> list[str]:
        """The sets in which a queued job waits to be claimed, or to be let in."""
        waiting = (*LEVELS, "delayed", *(s for s in self.sets if s.startswith("capped:")))
        return [suffix for suffix in waiting if job_id in self.of(suffix)]

    def status(self, job_id: str) -> str:
        """Empty for one that is not there."""
        return self.jobs.get(job_id, {}).get("status", "")

    @property
    def paused(self) -> bool:
        return self.stats.get("paused") == "1"


def is_set(suffix: str) -> bool:
    names = (
        "delayed",
        "leases",
        "deadlines",
        "aging",
        "dead",
        "index",
        "workers",
        "marker",
        "urgent",
        "spare",
    )
    return suffix in (*LEVELS, *names) or suffix.startswith("capped:")


def text(raw: dict[bytes, bytes]) -> Hash:
    return {name.decode(): value.decode() for name, value in raw.items()}
