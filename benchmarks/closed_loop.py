"""What N callers in a closed loop see of one continuously batching replica, given its step times. Used by `perf_fit.py`.

Each caller sends its next request when its last has ended, as `benchmark_serving.py --max-concurrency N --request-rate inf`
does. The scheduler is vLLM's: every running sequence decodes in every step, prompt chunks fill the rest of the step's
token budget in order of arrival, and the sequence that came last is preempted and recomputed when the KV cache is full.
"""

import heapq
import statistics
from collections import deque
from dataclasses import dataclass, field

from predictor.perf import StepTimes, mean_context


@dataclass(frozen=True, slots=True)
class Server:
    times: StepTimes
    kv_capacity_tokens: int
    budget_tokens: int = 8192


@dataclass(slots=True, eq=False)
class Sequence:
    prompt: int
    output: int
    arrived_s: float
    first_s: float = -1.0
    cached: int = 0  # tokens of the prompt that are in the KV cache
    prefill: int = (
        0  # tokens to be computed before the next output token: the prompt, or more after a preemption
    )
    ends_at: int = -1  # decode round after which it is complete
    turn: int = 0


@dataclass(slots=True)
class Loop:
    server: Server
    upcoming: deque[tuple[int, int]]
    waiting: deque[Sequence] = field(default_factory=deque)
    prefilling: list[Sequence] = field(default_factory=list)
    decoding: dict[int, Sequence] = field(default_factory=dict)  # by turn, which is the order of admission
    ends: list[tuple[int, int]] = field(default_factory=list)  # heap of (round, turn)
    ended: list[tuple[float, float]] = field(default_factory=list)  # TTFT, TPOT
    now_s: float = 0.0
    round: int = 0
    kv_tokens: int = 0  # of decoding sequences
    held_tokens: int = 0  # of prompts being computed
    turn: int = 0

    def send(self) -> None:
        if self.upcoming:
            prompt, output = self.upcoming.popleft()
            self.waiting.append(Sequence(prompt, output, self.now_s, prefill=prompt))

    def admit(self) -> None:
        """A prompt starts when all of it fits."""
        room = self.server.kv_capacity_tokens - self.kv_tokens - self.held_tokens - len(self.decoding)
        while self.waiting and (self.waiting[0].prefill <= room or not (self.decoding or self.prefilling)):
            sequence = self.waiting.popleft()
            self.turn += 1
            sequence.turn = self.turn
            room -= sequence.prefill
            self.held_tokens += sequence.prefill
            self.prefilling.append(sequence)

    def chunks(self) -> list[tuple[Sequence, int]]:
        found, budget = [], self.server.budget_tokens - len(self.decoding)
        for sequence in self.prefilling:
            if budget <= 0:
                break
            tokens = min(budget, sequence.prefill - sequence.cached)
            budget -= tokens
            found.append((sequence, tokens))
        return found

    def preempt(self) -> None:
        """By recomputation, latest first."""
        while (
            self.decoding
            and self.kv_tokens + self.held_tokens + len(self.decoding) > self.server.kv_capacity_tokens
        ):
            if len(self.decoding) == 1 and not self.prefilling:
                return
            turn = max(self.decoding)
            sequence = self.decoding.pop(turn)
            left = sequence.ends_at - self.round
            sequence.prefill, sequence.cached = sequence.prompt + sequence.output - left, 0
            self.kv_tokens -= sequence.prefill
            self.waiting.appendleft(sequence)

    def step(self) -> None:
        self.preempt()
        self.admit()
        chunks = self.chunks()
        rows, rounds = len(self.decoding), 1
        while self.ends and self.decoding.get(self.ends[0][1]) is None:
            heapq.heappop(self.ends)  # preempted
        if not chunks:  # nothing changes before the next end, or before the cache is full
            room = self.server.kv_capacity_tokens - self.kv_tokens - self.held_tokens
            rounds = max(1, min(self.ends[0][0] - self.round, room // rows))
        self.now_s += rounds * self.server.times.step_s(
            prefill_tokens=sum(tokens for _, tokens in chunks),
            prefill_context=mean_context((sequence.cached, tokens) for sequence, tokens in chunks),
            decode_sequences=rows,
            kv_tokens=self.kv_tokens + rows * (rounds - 1) // 2,
        )
        self.round += rounds
        self.kv_tokens += rounds * rows
        self.end_decodes()
        self.end_prefills(chunks)

    def end_decodes(self) -> None:
        while self.ends and self.ends[0][0] <= self.round:
            sequence = self.decoding.pop(heapq.heappop(self.ends)[1], None)
            if sequence is not None:
                self.kv_tokens -= sequence.prompt + sequence.output
                self.complete(sequence)

    def end_prefills(self, chunks: list[tuple[Sequence, int]]) -> None:
        for sequence, tokens in chunks:
            sequence.cached += tokens
            if sequence.cached < sequence.prefill:
                continue
            self.prefilling.remove(sequence)
            self.held_tokens -= sequence.prefill
            if sequence.first_s < 0:
                sequence.first_s = self.now_s
            have = sequence.prefill - sequence.prompt + 1
            if have >= sequence.output:
                self.complete(sequence)
                continue
            sequence.ends_at = self.round + sequence.output - have
            self.decoding[sequence.turn] = sequence
            self.kv_tokens += sequence.prefill + 1
            heapq.heappush(self.ends, (sequence.ends_at, sequence.turn))

    def complete(self, sequence: Sequence) -> None:
        ttft = sequence.first_s - sequence.arrived_s
        self.ended.append((ttft, (self.now_s - sequence.first_s) / max(1, sequence.output - 1)))
        self.send()


def closed_loop(server: Server, requests: list[tuple[int, int]], *, callers: int) -> tuple[float, float]:
    """Mean TTFT and mean TPOT in seconds over all requests. `requests`: (prompt tokens, output tokens), in order."""
    loop = Loop(server, deque(requests))
    for _ in range(callers):
        loop.send()
    while loop.waiting or loop.prefilling or loop.decoding:
        loop.step()
    return statistics.mean(t for t, _ in loop.ended), statistics.mean(t for _, t in loop.ended)
