"""What a worker learns of its engine from the jobs that it runs: how fast it reads and writes, how long answers really are.

Used where an answer comes as a whole, so that nobody sees its tokens on the way. Pure.
"""

from collections import deque
from dataclasses import dataclass, field

SMOOTH = 0.1  # weight of a new sample
LEARNS_FROM = 8  # answers, before their lengths are believed
KEPT = 64
QUANTILE = 0.9
LONG_TOKENS = 64  # prompts and answers below this say little about speed


@dataclass(slots=True)
class Pace:
    """Seconds a prompt token and tokens a second, of one request among the others. It begins with a small GPU's.

    `length_share`: of its predicted length, what an answer needs in nine cases of ten; callers name limits far above that.
    """

    prefill_s_per_token: float = 1 / 8000
    decode_per_s: float = 40.0
    overhead_s: float = 0.05  # one step, and the way to the engine
    length_share: float = 1.0
    _shares: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))

    def prefill_s(self, prompt_tokens: int) -> float:
        return self.overhead_s + prompt_tokens * self.prefill_s_per_token

    def saw_first(self, prompt_tokens: int, ttft_s: float) -> None:
        if prompt_tokens >= LONG_TOKENS:
            measured = max(0.0, ttft_s - self.overhead_s) / prompt_tokens
            self.prefill_s_per_token += SMOOTH * (measured - self.prefill_s_per_token)

    def saw_answer(self, tokens: int, seconds: float) -> None:
        """`seconds`: from its first token to its last."""
        if tokens >= LONG_TOKENS and seconds > 0:
            self.decode_per_s += SMOOTH * (tokens / seconds - self.decode_per_s)

    def saw_length(self, tokens: int, *, predicted: int) -> None:
        if predicted > 0:
            self._shares.append(tokens / predicted)
        if len(self._shares) >= LEARNS_FROM:
            self.length_share = sorted(self._shares)[int(QUANTILE * (len(self._shares) - 1))]
