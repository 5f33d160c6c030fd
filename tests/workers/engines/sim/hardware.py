"""A plain machine whose step times can be reckoned in the head, and short ways to make requests for it."""

from collections import defaultdict
from dataclasses import dataclass

from workers.engines.sim.replica import Replica, StepResult
from workers.engines.sim.sequence import Answer, Prompt, Request, prompt_of


@dataclass(frozen=True)
class Linear:
    """1 ms a step and 10 us a prompt token; context and batch cost nothing."""

    base_s: float = 0.001
    prefill_token_s: float = 0.00001

    def step_s(
        self, *, prefill_tokens: int, prefill_context: int, decode_sequences: int, kv_tokens: int
    ) -> float:
        return self.base_s + prefill_tokens * self.prefill_token_s


def prompt(tokens: int, *, kind: int = 0, salt: str = "") -> Prompt:
    """Prompts of a kind are prefixes of one another; those of different kinds have nothing in common."""
    return prompt_of([1000 + kind] * tokens, salt=salt)


def request(name: str, tokens: int = 32, *outputs: int, kind: int = 0, priority: int = 0) -> Request:
    answers = tuple(Answer(count, seed=n) for n, count in enumerate(outputs or (4,)))
    return Request(name, prompt(tokens, kind=kind), answers, priority)


def run(replica: Replica, *, steps: int = 100_000) -> list[StepResult]:
    """Until nothing is left to do."""
    results = []
    while replica.busy:
        results.append(replica.step())
        assert len(results) <= steps, "the engine makes no progress"
    return results


def counts(results: list[StepResult]) -> dict[tuple[str, int], list[int]]:
    """The positions of the tokens that each answer got, in order."""
    found: dict[tuple[str, int], list[int]] = defaultdict(list)
    for result in results:
        for token in result.emitted:
            found[token.request_id, token.index].append(token.position)
    return dict(found)
