"""A request to the simulated engine, and the sequences that it becomes: one per answer. Data, no decisions."""

from collections.abc import Sequence as Items
from dataclasses import dataclass, field

from workers.engines.sim.blocks import BLOCK_TOKENS, chain, root_hash
from workers.engines.sim.tokens import words


@dataclass(frozen=True, slots=True)
class Prompt:
    """`hashes`: of its full blocks, chained; `tail`: the tokens after them; `root`: what the first block is chained to."""

    tokens: int
    hashes: tuple[bytes, ...]
    tail: tuple[int, ...]
    root: bytes


def prompt_of(tokens: Items[int], *, salt: str = "", block_tokens: int = BLOCK_TOKENS) -> Prompt:
    root = parent = root_hash(salt)
    full = len(tokens) // block_tokens * block_tokens
    hashes: list[bytes] = []
    for start in range(0, full, block_tokens):
        parent = chain(parent, tokens[start : start + block_tokens])
        hashes.append(parent)
    return Prompt(len(tokens), tuple(hashes), tuple(tokens[full:]), root)


@dataclass(frozen=True, slots=True)
class Answer:
    """What one sequence will say: `tokens` of them (at least 1), drawn from `seed`, and why it ends there."""

    tokens: int
    seed: int = 0
    reason: str = "length"  # or "stop"


@dataclass(frozen=True, slots=True)
class Request:
    """`priority`: lower first, where the engine's policy looks at it. Several answers share the prompt's blocks."""

    request_id: str
    prompt: Prompt
    answers: tuple[Answer, ...]
    priority: int = 0


@dataclass(slots=True, eq=False)
class Sequence:
    """One answer in the making. `computed` of its tokens are in `table`'s blocks; `produced` have been emitted.

    `siblings`: answers that split off once the prompt is computed. `cached`: what the prefix cache saved at the first
    start, None before it.
    """

    request: Request
    index: int
    arrival: int
    siblings: "tuple[Sequence, ...]" = ()
    table: list[int] = field(default_factory=list)
    computed: int = 0
    produced: int = 0
    named: int = 0
    cached: int | None = None
    _hashes: list[bytes] = field(default_factory=list)

    @property
    def answer(self) -> Answer:
        return self.request.answers[self.index]

    @property
    def tokens(self) -> int:
        """Prompt and what has been produced; the last one is in no block yet."""
        return self.request.prompt.tokens + self.produced

    @property
    def missing(self) -> int:
        """Tokens whose KV has to be computed before the next one can be produced: 1 in decode."""
        return self.request.prompt.tokens + self.produced - self.computed

    @property
    def finished(self) -> bool:
        return self.produced >= self.answer.tokens

    def block_hash(self, number: int, block_tokens: int) -> bytes:
        """Of a full block of this sequence, be it prompt, answer or both."""
        prompt = self.request.prompt
        if number < len(prompt.hashes):
            return prompt.hashes[number]
        first = len(prompt.hashes)
        while len(self._hashes) <= number - first:
            start = (first + len(self._hashes)) * block_tokens - prompt.tokens  # within the answer
            held = prompt.tail if not self._hashes else ()
            said = words(self.answer.seed, range(max(0, start), start + block_tokens))
            parent = self._hashes[-1] if self._hashes else (prompt.hashes or (prompt.root,))[-1]
            self._hashes.append(chain(parent, (*held, *said)))
        return self._hashes[number - first]
