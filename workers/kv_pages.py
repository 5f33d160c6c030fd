"""KV cache arithmetic: what running jobs hold now, and what they will hold together at most. Pure.

Engines give out their cache in pages of some tokens; a job holds whole pages.
"""

import math
from collections.abc import Iterable

PAGE_TOKENS = 16  # where the engine does not say: vLLM's and TensorRT-LLM's default block is 16 to 32 tokens


def paged(tokens: float, page: int = PAGE_TOKENS) -> int:
    """Tokens, rounded up to whole pages of `page` tokens."""
    return -(-math.ceil(tokens) // page) * page


def peak_tokens(jobs: Iterable[tuple[int, int]]) -> int:
    """The most that jobs of (tokens held, tokens still to come) will hold at one time.

    All grow at one pace, since they decode in one batch, and each gives everything back at its end: so the peak is at
    the end of some job, when those that have more to come are still there.
    Source: the future memory of LightLLM's Past-Future scheduler (Gong et al., ASPLOS 2025, section 3).
    """
    held, peak = 0, 0
    for count, (now_held, to_come) in enumerate(sorted(jobs, key=lambda job: -job[1]), start=1):
        held += now_held
        peak = max(peak, held + count * to_come)
    return peak
