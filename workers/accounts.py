"""The books of one worker: what each attempt has used, however it ended, and how long it took; flushed once a second.

A flush that Redis does not answer is sent again with its number, and counts once. A worker that is killed takes what was
not flushed with it: a second's ends at most while Redis is there. docs/cost.md says how each number is counted.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date

from redis.exceptions import ResponseError

from broker import accounts
from broker.accounts import Attempt, Used
from broker.connection import Pipe
from broker.errors import QueueFull, RedisAway
from broker.histograms import READ
from broker.job import queue_of
from predictor.estimator import prompt_tokens
from predictor.online_fit import OnlineFit
from workers.engine import CHAT, EngineCall, Usage
from workers.engines.usage import checked
from workers.pace import Pace
from workers.sight import Seen

log = logging.getLogger("headway.accounts")
FLUSH_S = 1.0
ASSUMED_TOKENS = 500.0
FIRST_S = (0.05, 0.125)  # until the first token, and for each 1,000 that are read, until streams tell
FIRST_SPREADS = (0.5, 1.0)
LEAST_S = 0.01
FADE = 0.99  # of what was learned, with each job: the last hundred count
LONG_TOKENS = (
    1024  # of prompts that tell how fast the engine reads: of shorter ones, the way there takes as long
)
LAST = (
    "succeeded",
    "failed",
    "lost",
)  # attempts that end their job; one that is lost was cancelled, nearly always
NOT_BEGUN = ("busy", "unreachable")  # the engine did not take it


@dataclass(frozen=True, slots=True)
class Price:
    """Of an engine replica: so many GPUs, and dollars for an hour of one."""

    gpus: int = 1
    gpu_hour_usd: float = 0.0

    def gpu_us(self, share_s: float) -> int:
        return round(share_s * self.gpus * 1e6)

    def nano_usd(self, share_s: float) -> int:
        return round(share_s * self.gpus / 3600 * self.gpu_hour_usd * 1e9)


FREE = Price()


@dataclass(slots=True)
class Ratio:
    """How an engine has counted lately, over what was expected of it. It begins as if so many tokens had been counted as expected."""

    counted: float = ASSUMED_TOKENS
    expected: float = ASSUMED_TOKENS

    def learn(self, counted: int, *, expected: int) -> None:
        if counted > 0 and expected > 0:
            self.counted = FADE * self.counted + counted
            self.expected = FADE * self.expected + expected

    def of(self, expected: int) -> int:
        return round(expected * self.counted / self.expected)


@dataclass(slots=True)
class _Page(accounts.Page):
    """Of one queue. `noted`: on which day it was last said that it has books."""

    noted: date | None = None


class Accounts:
    """Follows `Sight`. `pace`: how fast the engine writes, for answers that were cut before a token was seen."""

    def __init__(self, pipe: Pipe, *, worker_id: str, price: Price, pace: Callable[[], Pace]) -> None:
        self._pipe = pipe
        self._worker_id = worker_id
        self._price = price
        self._pace = pace
        self._prompts = Ratio()
        self._first = OnlineFit.start(FIRST_S, spreads=FIRST_SPREADS)
        self._chunks = Ratio()
        self._pages: dict[str, _Page] = {}

    def saw(self, seen: Seen, outcome: str) -> None:
        """One more attempt has ended."""
        lease, share_s = seen.lease, 0.0 if outcome in NOT_BEGUN else seen.share_s
        tokens = self._tokens(seen, outcome)
        used = Used(
            requests=int(outcome in LAST),
            attempts=1,
            prompt_tokens=tokens.prompt_tokens,
            output_tokens=tokens.completion_tokens,
            cached_tokens=tokens.cached_tokens,
            gpu_us=self._price.gpu_us(share_s),
            nano_usd=self._price.nano_usd(share_s),
        )
        times = _times(seen, outcome, tokens=tokens)
        page = self._pages.setdefault(queue_of(lease.job_id), _Page())
        Attempt(lease.tenant, lease.service_class, used, times).add_to(page.waiting)

    def _tokens(self, seen: Seen, outcome: str) -> Usage:
        """As the engine counted them; of a cut attempt, what it had read and written by then."""
        usage = None if seen.final is None else seen.final.usage
        if usage is not None:
            if not usage.recounted:
                self._prompts.learn(usage.prompt_tokens, expected=_asked(seen))
                self._chunks.learn(usage.completion_tokens, expected=_written(seen))
                self._see_first(seen, fresh=usage.prompt_tokens - usage.cached_tokens)
            return usage
        if seen.call is None or outcome in NOT_BEGUN:
            return Usage(0, 0, 0)
        return self._cut(seen, seen.call)

    def _see_first(self, seen: Seen, *, fresh: int) -> None:
        if seen.first is not None:
            terms = 1.0, fresh / 1000
            self._first = self._first.learn(terms, seen.first - seen.began, least=LEAST_S)

    def _cut(self, seen: Seen, call: EngineCall) -> Usage:
        prompt = self._prompts.of(_asked(seen))
        if call.stream:
            written, is_read = self._chunks.of(_written(seen)), seen.first is not None
        else:
            writing_s = seen.left - seen.began - self._first.value((1.0, prompt / 1000))
            each, is_read = self._pace().decode_per_s * max(0.0, writing_s), writing_s > 0
            written = round(seen.lease.choices * each)
        if not is_read:
            return Usage(0, 0, 0)
        return checked(Usage(prompt, written, 0), call, written=written)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(FLUSH_S)
            await self.flush()

    async def flush(self) -> None:
        """Everything that waits. Never raises: what is not answered for is sent again by the next one."""
        await asyncio.gather(*(self._send(queue, page) for queue, page in self._pages.items()))

    async def _send(self, queue: str, page: _Page) -> None:
        try:
            while sums := page.next():
                if page.noted != (today := accounts.today()):
                    await accounts.note_queue(self._pipe, queue)
                    page.noted = today
                await self._pipe.run(accounts.flush(queue, self._worker_id, number=page.number, sums=sums))
                page.sent = {}
        except (RedisAway, QueueFull) as error:
            log.debug("%d sums of %s are sent again: %s", len(page.sent), queue, error)
        except ResponseError as error:  # for good: sent again, it would keep all later ones waiting
            log.error("%d sums of %s are lost, as they cannot be added: %s", len(page.sent), queue, error)  # noqa: TRY400
            page.sent = {}


def _asked(seen: Seen) -> int:
    """Prompt tokens by the plain estimate: the forecast learns meanwhile, and would not stand in one ratio to what is counted."""
    return 0 if seen.call is None else prompt_tokens(seen.call.body)


def _written(seen: Seen) -> int:
    """Chunks with text: a chat's first, of each choice, has none."""
    frames = seen.lease.choices if seen.call is not None and seen.call.endpoint == CHAT else 0
    return max(0, seen.payloads - frames)


def _times(seen: Seen, outcome: str, *, tokens: Usage) -> dict[str, float]:
    """Seconds. Waits are of first attempts, the others of answers that were finished."""
    lease, times = seen.lease, dict[str, float]()
    if lease.attempt == 1:
        times["wait"] = lease.waited_s
    if outcome != "succeeded":
        return times
    times["e2e"] = seen.since_accepted_s(time.monotonic())
    if seen.first is None:
        return times
    times["ttft"] = seen.since_accepted_s(seen.first)
    if (fresh := tokens.prompt_tokens - tokens.cached_tokens) >= LONG_TOKENS:
        times[READ] = 1000 * (seen.first - seen.began) / fresh
    later = tokens.completion_tokens / lease.choices - 1
    if later >= 1:
        times["tpot"] = (seen.ended - seen.first) / later
    return times
