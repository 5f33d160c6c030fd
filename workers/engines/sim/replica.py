"""One GPU replica: requests in, steps of computed tokens out. Pure and deterministic, without a clock: a step says how long it
takes, and `virtual.py` or `realtime.py` lets that time pass.

Invariant: what a request says depends on the request alone, never on what it shared a batch with or how often it was
preempted.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from predictor.perf import StepTimes, mean_context
from workers.engines.sim.blocks import BlockPool
from workers.engines.sim.scheduler import Batch, Limits, Scheduler
from workers.engines.sim.sequence import Request, Sequence

IDLE_S = 0.0


@dataclass(frozen=True, slots=True)
class Emitted:
    """Token number `position` of an answer; `ends` with the reason if it is the last."""

    request_id: str
    index: int
    position: int
    ends: str | None


@dataclass(frozen=True, slots=True)
class StepResult:
    """What happened in a step that took `seconds`.

    `finished`: requests of which all answers are there, and how many tokens of the prompt were cached.
    """

    seconds: float
    emitted: list[Emitted]
    finished: dict[str, int]
    preempted: list[str]
    prefill_tokens: int
    decode_sequences: int


@dataclass(slots=True)
class Totals:
    """Since the start. Prompt tokens count when their prefill is done, cached ones included."""

    steps: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    cache_queries: int = 0
    cache_hits: int = 0
    preemptions: int = 0


@dataclass(slots=True)
class _Open:
    """A request and those of its sequences that have not finished."""

    sequences: list[Sequence]
    cached: int = 0


@dataclass(slots=True)
class _Load:
    """A step's shape, as the model of the hardware wants it."""

    prefill_tokens: int = 0
    prefill_context: int = 0
    decode_sequences: int = 0
    kv_tokens: int = 0


class Replica:
    """`add` and `abort` between steps; `step` while `busy`."""

    def __init__(self, limits: Limits, hardware: StepTimes) -> None:
        self.limits = limits
        self.totals = Totals()
        self._hardware = hardware
        self._scheduler = Scheduler(limits)
        self._open: dict[str, _Open] = {}
        self._arrivals = 0

    @property
    def busy(self) -> bool:
        return bool(self._open)

    @property
    def pool(self) -> BlockPool:
        return self._scheduler.pool

    @property
    def running(self) -> int:
        return len(self._scheduler.running)

    @property
    def waiting(self) -> int:
        return self._scheduler.waiting

    @property
    def kv_used_share(self) -> float:
        return self.pool.used / self.pool.total

    @property
    def live_tokens(self) -> int:
        """Tokens of running sequences that are in the cache; shared ones count for each."""
        return sum(sequence.computed for sequence in self._scheduler.running)

    def add(self, request: Request) -> None:
        """Raises ValueError for an id that is in use or a request that is longer than the engine allows."""
        longest = request.prompt.tokens + max(answer.tokens for answer in request.answers)
        if request.request_id in self._open:
            raise ValueError(f"request {request.request_id} is there already")
        if longest > self.limits.max_model_len:
            raise ValueError(f"{longest} tokens are more than the {self.limits.max_model_len} of the model")
        self._arrivals += 1
        siblings = tuple(Sequence(request, i, self._arrivals) for i in range(1, len(request.answers)))
        first = Sequence(request, 0, self._arrivals, siblings)
        self._open[request.request_id] = _Open([first, *siblings])
        self._scheduler.enqueue(first)

    def abort(self, request_id: str) -> None:
        """Its blocks are free at once. An unknown request is no error: it may just have finished."""
        record = self._open.pop(request_id, None)
        for sequence in record.sequences if record else ():
            self._scheduler.remove(sequence)

    def step(self) -> StepResult:
        batch = self._scheduler.schedule()
        load = _measure(batch)
        seconds = self._time(load) if batch.work else IDLE_S
        emitted = [
            token for sequence, count in batch.work.items() for token in self._compute(sequence, count)
        ]
        finished: dict[str, int] = {}
        for token in emitted:
            if token.ends:
                self._close(token, finished)
        self.totals.steps += 1
        self.totals.cache_queries += batch.queries
        self.totals.cache_hits += batch.hits
        self.totals.preemptions += len(batch.preempted)
        self.totals.generation_tokens += len(emitted)
        preempted = [sequence.request.request_id for sequence in batch.preempted]
        return StepResult(seconds, emitted, finished, preempted, load.prefill_tokens, load.decode_sequences)

    def _time(self, load: _Load) -> float:
        return self._hardware.step_s(
            prefill_tokens=load.prefill_tokens,
            prefill_context=load.prefill_context,
            decode_sequences=load.decode_sequences,
            kv_tokens=load.kv_tokens,
        )

    def _compute(self, sequence: Sequence, count: int) -> Iterator[Emitted]:
        sequence.computed += count
        if sequence.missing:
            return
        record = self._open[sequence.request.request_id]
        if not sequence.produced and not sequence.index:
            self.totals.prompt_tokens += sequence.request.prompt.tokens
            record.cached = sequence.cached or 0
        siblings, sequence.siblings = sequence.siblings, ()
        forked = [child for child in siblings if self._scheduler.fork(sequence, child)]
        for each in (sequence, *forked):
            yield self._emit(each)

    def _emit(self, sequence: Sequence) -> Emitted:
        position, sequence.produced = sequence.produced, sequence.produced + 1
        ends = sequence.answer.reason if sequence.finished else None
        if ends:
            self._scheduler.remove(sequence)
        return Emitted(sequence.request.request_id, sequence.index, position, ends)

    def _close(self, token: Emitted, finished: dict[str, int]) -> None:
        record = self._open[token.request_id]
        record.sequences = [s for s in record.sequences if s.index != token.index]
        if not record.sequences:
            finished[token.request_id] = self._open.pop(token.request_id).cached


def _measure(batch: Batch) -> _Load:
    load, chunks = _Load(), []
    for sequence, count in batch.work.items():
        if count == 1 and sequence.produced and sequence.missing == 1:
            load.decode_sequences += 1
            load.kv_tokens += sequence.tokens
        else:
            load.prefill_tokens += count
            chunks.append((sequence.computed, count))
    load.prefill_context = mean_context(chunks)
    return load
