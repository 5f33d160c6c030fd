"""The one tree of errors. HTTP status codes are mapped in `api/errors.py` and nowhere else.

BrokerError
├── ConfigError          a setting or file is wrong; the program refuses to start
├── RedisUnsuitable      reachable, but not fit to hold a queue (eviction, version)
├── RedisAway            Redis did not answer in time; nothing is known about the command
│   └── RedisSilent      it was waited for already: it hangs, or the network swallows everything
├── QueueFull            a limit refused the job before it was accepted
│   ├── LimitReached     as much waits as the queue, or its class, takes
│   ├── StartTooLate     it would begin behind its deadline
│   └── MemoryFull       Redis has no memory left for it
├── InvalidJob           the submission itself cannot be queued
├── UnknownJob           no such job (or its record has expired)
├── UnknownPool          no pool of that name
├── UnknownWorker        no such worker of that pool, or no longer
├── UnknownFile          no such uploaded or produced file (or it has expired)
├── UnknownBatch         no such batch (or its record has expired)
├── BatchEnded           a batch that has ended, or is about to, cannot be cancelled
├── StaleToken           the lease is no longer ours; stop work, write nothing
├── StreamLost           chunks were trimmed before the reader came back
└── EngineError          see `workers/engine.py`
"""

from typing import ClassVar


class BrokerError(Exception):
    """Root. `retryable` says whether the same call may succeed later without being changed."""

    retryable: ClassVar[bool] = False


class ConfigError(BrokerError):
    """A setting is missing or malformed. The message names the setting and what it accepts."""


class RedisUnsuitable(BrokerError):
    """Redis would lose or refuse jobs as it is configured."""


class RedisAway(BrokerError):
    """No answer from Redis. The command may or may not have been applied: repeat it by its id."""

    retryable = True


class RedisSilent(RedisAway):
    """Redis neither answers nor refuses, for HEADWAY_REDIS_TIMEOUT_S by now."""


class QueueFull(BrokerError):
    """Refused before acceptance."""

    retryable = True

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class LimitReached(QueueFull):
    """Of one queue. `waiting` and `most` are jobs, or predicted seconds (`unit`). `service_class` "": all of the queue's.

    A shard has its part of the pool's limit, and is named so: the pool takes more.
    """

    def __init__(self, queue: str, service_class: str, *, unit: str, waiting: float, most: float) -> None:
        whose = f"{service_class} jobs" if service_class else "jobs"
        what = f"{waiting:g} {whose}" if unit == "jobs" else f"{whose} of {waiting:.0f} predicted seconds"
        pool, _, shard = queue.partition("~")  # job.SHARD_MARK; that module imports this one
        where = f"shard {shard} of the pool {pool!r}" if shard else f"the pool {pool!r}"
        super().__init__(f"{what} wait in {where}, which takes {most:g}", retry_after_s=1.0)
        self.queue = queue
        self.service_class = service_class
        self.unit = unit
        self.waiting = waiting
        self.most = most


class StartTooLate(QueueFull):
    """`ahead_s`: predicted seconds of the jobs that would be claimed before it."""

    def __init__(self, ahead_s: float) -> None:
        super().__init__(f"{ahead_s:.0f} predicted seconds are ahead of the job", retry_after_s=1.0)
        self.ahead_s = ahead_s


class MemoryFull(QueueFull):
    """Redis is at its `maxmemory`: new work is refused so that accepted work can end."""


class InvalidJob(BrokerError):
    """`param` is the request field at fault, if one is; `code` as in OpenAI's error object."""

    def __init__(self, message: str, *, param: str | None = None, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class UnknownJob(BrokerError):
    """The id was never issued, or the record's retention has passed."""


class UnknownPool(BrokerError):
    """The message lists the pools there are."""


class UnknownWorker(BrokerError):
    """The worker has left, or serves another pool."""


class UnknownFile(BrokerError):
    """The id was never issued, the file was deleted, or its retention has passed."""


class UnknownBatch(BrokerError):
    """The id was never issued, or the record's retention has passed."""


class BatchEnded(BrokerError):
    """The message names the status it has."""


class StaleToken(BrokerError):
    """Another attempt, a cancellation or an expiry has taken the job away from this lease."""


class StreamLost(BrokerError):
    """The replay buffer no longer reaches back to the reader's last event id."""


class EngineError(BrokerError):
    """An engine could not or would not answer."""

    retryable = True
