"""Which sequences compute how many tokens in the next step. Pure; one instance owns the blocks of its replica.

Running sequences come first, then waiting ones while the step's token budget, the places and the blocks last; a prompt
longer than the budget is computed in chunks. When blocks run out the latest (by the priority policy: the least urgent, then
the latest) loses its blocks and starts over later. Source: the order of decisions of vLLM's v1 scheduler.
"""

import heapq
from dataclasses import dataclass, field
from typing import Literal

from broker.errors import ConfigError
from workers.engines.sim.blocks import BLOCK_TOKENS, BlockPool
from workers.engines.sim.sequence import Sequence

Policy = Literal["fcfs", "priority"]
Batching = Literal["continuous", "static"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What an engine is started with. `batching` "static": the next batch starts when the last one has ended.

    `reserve_tokens`: room that a sequence takes at its start whatever it needs, as engines without pages do; 0: none.
    """

    kv_tokens: int
    max_model_len: int = 8192
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    block_tokens: int = BLOCK_TOKENS
    policy: Policy = "fcfs"
    batching: Batching = "continuous"
    prefix_caching: bool = True
    reserve_tokens: int = 0

    def __post_init__(self) -> None:
        low = [
            name
            for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len")
            if getattr(self, name) < 1
        ]
        if low:
            raise ConfigError(f"{low[0]} must be at least 1")
        if self.blocks * self.block_tokens < max(self.max_model_len, self.reserve_tokens):
            raise ConfigError(
                f"a KV cache of {self.kv_tokens} tokens does not hold one sequence of {self.max_model_len}:"
                " raise kv_tokens or lower max_model_len"
            )

    @property
    def blocks(self) -> int:
        return self.kv_tokens // self.block_tokens


@dataclass(slots=True)
class Batch:
    """A step's work: tokens to compute per sequence, in the order of admission."""

    work: dict[Sequence, int] = field(default_factory=dict)
    preempted: list[Sequence] = field(default_factory=list)
    queries: int = 0  # prompt tokens looked up in the prefix cache
    hits: int = 0


class Scheduler:
    """`schedule` commits blocks; the caller computes, moves the sequences on, and takes out what has finished."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.pool = BlockPool(limits.blocks, caching=limits.prefix_caching)
        self.running: list[Sequence] = []
        self._waiting: list[tuple[int, int, int, Sequence]] = []
        self._open = True  # static batching: may the batch still take members?

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def enqueue(self, sequence: Sequence) -> None:
        heapq.heappush(self._waiting, (*self._rank(sequence), sequence.index, sequence))

    def schedule(self) -> Batch:
        batch = Batch()
        budget = self._continue(batch, self._limits.max_num_batched_tokens)
        if not batch.preempted:
            self._admit(batch, budget)
        return batch

    def remove(self, sequence: Sequence) -> None:
        """It has finished or is called off. Its blocks are free; the last ones are evicted first."""
        if sequence in self.running:
            self.running.remove(sequence)
        else:
            self._waiting = [entry for entry in self._waiting if entry[-1] is not sequence]
            heapq.heapify(self._waiting)
        self._free(sequence)

    def fork(self, parent: Sequence, child: Sequence) -> bool:
        """The child shares all that the parent has computed. False: no place is free, and it waits for one."""
        if len(self.running) >= self._limits.max_num_seqs:
            self.enqueue(child)
            return False
        child.table = list(parent.table)
        self.pool.share(child.table)
        child.computed, child.named, child.cached = parent.computed, parent.named, parent.computed
        self.running.append(child)
        return True

    def _continue(self, batch: Batch, budget: int) -> int:
        """Gives running sequences their tokens; returns what is left of the budget."""
        place = 0
        while place < len(self.running) and budget > 0:
            sequence = self.running[place]
            count = min(sequence.missing, budget)
            while not self._extend(sequence, count):
                victim = self._preempt(batch)
                freed = batch.work.pop(victim, 0)
                budget, place = budget + freed, place - bool(freed)
                if victim is sequence:
                    break
            else:
                batch.work[sequence] = count
                budget, place = budget - count, place + 1
        return budget

    def _admit(self, batch: Batch, budget: int) -> None:
        if self._limits.batching == "static":
            self._open = self._open or not self.running
        while self._waiting and budget > 0 and self._open:
            sequence = self._waiting[0][-1]
            if len(self.running) >= self._limits.max_num_seqs or not self._start(sequence, batch):
                self._open = self._limits.batching == "continuous"
                return
            heapq.heappop(self._waiting)
            self.running.append(sequence)
            count = min(sequence.missing, budget)
            taken = self._extend(sequence, count)
            assert taken, "a sequence starts only where all of it fits"
            batch.work[sequence] = count
            budget -= count
        if not self._waiting and self._limits.batching == "static":
            self._open = False

    def _start(self, sequence: Sequence, batch: Batch) -> bool:
        """Takes over what is cached of it, if all that it has to compute now would fit.

        Not only its first chunk: half-computed prompts would crowd each other out.
        """
        size, known = self._limits.block_tokens, (sequence.tokens - 1) // self._limits.block_tokens
        cached = self.pool.find(sequence.block_hash(number, size) for number in range(known))
        needed = -(-max(sequence.tokens, self._limits.reserve_tokens) // size) - len(cached)
        if needed > self.pool.free - self.pool.unreferenced(cached):
            return False
        self.pool.share(cached)
        sequence.table, sequence.named = cached, len(cached)
        sequence.computed = len(cached) * size
        if sequence.cached is None:
            sequence.cached = sequence.computed
            batch.queries += sequence.tokens
            batch.hits += sequence.computed
        return True

    def _extend(self, sequence: Sequence, count: int) -> bool:
        """Blocks for `count` more tokens, or none at all. A block that others share too is copied before it is written."""
        size, table, after = self._limits.block_tokens, sequence.table, sequence.computed + count
        missing = -(-max(after, self._limits.reserve_tokens) // size) - len(table)
        at, offset = divmod(sequence.computed, size)
        copies = bool(offset) and self.pool.references(table[at]) > 1
        if max(0, missing) + copies > self.pool.free:
            return False
        if copies:
            shared = table[at]
            (table[at],) = self.pool.take(1)
            self.pool.drop([shared])
        if missing > 0:
            table += self.pool.take(missing)
        for number in range(sequence.named, after // size):
            self.pool.name(table[number], sequence.block_hash(number, size))
        sequence.named = after // size
        return True

    def _preempt(self, batch: Batch) -> Sequence:
        victim = max(self.running, key=self._rank) if self._limits.policy == "priority" else self.running[-1]
        self.running.remove(victim)
        # blocks that this very step was to fill have their names already
        self.pool.forget(victim.table[victim.computed // self._limits.block_tokens : victim.named])
        self._free(victim)
        self.enqueue(victim)
        batch.preempted.append(victim)
        return victim

    def _free(self, sequence: Sequence) -> None:
        self.pool.drop(reversed(sequence.table))
        sequence.table, sequence.computed, sequence.named = [], 0, 0

    def _rank(self, sequence: Sequence) -> tuple[int, int]:
        """Who is served first: lower."""
        return (sequence.request.priority if self._limits.policy == "priority" else 0, sequence.arrival)
