"""What the KV cache would hold: a shadow of its memory, in which nobody may find a token that is not their own."""

from collections.abc import Iterator

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.workers.engines.sim.hardware import Linear
from workers.engines.sim.blocks import BLOCK_TOKENS
from workers.engines.sim.replica import Emitted, Replica
from workers.engines.sim.scheduler import Limits
from workers.engines.sim.sequence import Answer, Request, Sequence, prompt_of
from workers.engines.sim.tokens import words

LIMITS = Limits(
    kv_tokens=320, max_model_len=200, max_num_seqs=5, max_num_batched_tokens=64, policy="priority"
)


class Shadowed(Replica):
    """Writes each token where the engine would write its keys and values, and reads all back after each step."""

    def __init__(self, prompts: dict[str, list[int]]) -> None:
        super().__init__(LIMITS, Linear())
        self._prompts = prompts
        self._tables: dict[Sequence, list[int]] = {}
        self._memory = [[-1] * BLOCK_TOKENS for _ in range(LIMITS.blocks)]

    def token_at(self, sequence: Sequence, position: int) -> int:
        prompt = self._prompts[sequence.request.request_id]
        if position < len(prompt):
            return prompt[position]
        return words(sequence.answer.seed, [position - len(prompt)])[0]

    def _compute(self, sequence: Sequence, count: int) -> Iterator[Emitted]:
        for old, new in zip(self._tables.get(sequence, []), sequence.table, strict=False):
            if old != new and sequence.computed:  # copied before it is written; after a preemption it is new
                self._memory[new] = list(self._memory[old])
        for position in range(sequence.computed, sequence.computed + count):
            block, offset = divmod(position, BLOCK_TOKENS)
            self._memory[sequence.table[block]][offset] = self.token_at(sequence, position)
        yield from super()._compute(sequence, count)

    def check(self) -> None:
        self._tables = {sequence: list(sequence.table) for sequence in self._scheduler.running}
        for sequence in self._scheduler.running:
            expected = [self.token_at(sequence, position) for position in range(sequence.computed)]
            found = [
                self._memory[sequence.table[p // BLOCK_TOKENS]][p % BLOCK_TOKENS]
                for p in range(sequence.computed)
            ]
            assert found == expected


REQUESTS = st.lists(
    st.tuples(
        st.lists(st.integers(1, 3), min_size=1, max_size=6),  # a prompt is made of some of three passages
        st.integers(0, 20),  # and this many tokens of its own
        st.lists(st.integers(1, 60), min_size=1, max_size=4),  # answers
        st.integers(0, 1),  # salt
        st.integers(0, 3),  # priority
        st.integers(0, 6),  # steps before the next one comes
    ),
    min_size=1,
    max_size=10,
)

Asked = list[tuple[list[int], int, list[int], int, int, int]]
PREEMPTED_AS_IT_FILLS_A_BLOCK: Asked = [
    ([1], 0, [1], 0, 0, 0),
    ([1, 1], 0, [10, 10], 0, 0, 6),
    ([1, 1, 1], 20, [1, 2], 1, 0, 0),
    ([2, 1, 1, 1, 1, 1], 9, [2], 0, 0, 0),
]


@settings(max_examples=150, deadline=None)
@given(REQUESTS)
@example(PREEMPTED_AS_IT_FILLS_A_BLOCK)
def test_a_sequence_finds_its_own_tokens_whatever_is_shared_copied_evicted_or_computed_again(
    requests: Asked,
) -> None:
    prompts: dict[str, list[int]] = {}
    replica = Shadowed(prompts)
    for number, (passages, own, outputs, salt, priority, steps) in enumerate(requests):
        tokens = [1000 * passage + i for passage in passages for i in range(20)]
        tokens += [10_000 + number] * own
        prompts[str(number)] = tokens
        answers = tuple(Answer(count, seed=seed) for seed, count in enumerate(outputs))
        replica.add(Request(str(number), prompt_of(tokens, salt=str(salt)), answers, priority))
        for _ in range(steps * replica.busy):
            replica.step()
            replica.check()
    while replica.busy:
        replica.step()
        replica.check()
