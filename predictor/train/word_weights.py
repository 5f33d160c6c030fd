"""Learns a word's weight by ridge regression: what the words of a prompt say beyond the mean. See `predictor/lexicon.py`."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.linalg import lsqr

from predictor.lexicon import Weights

Words = Sequence[frozenset[bytes]]
MAX_WORD_BYTES = 24


@dataclass(frozen=True, slots=True)
class Ridge:
    """`least`: prompts (of at least so many groups) that must have a word. `damp`: as if each word had been seen that
    often squared without any effect."""

    least: int = 4
    damp: float = 8.0
    most_words: int = 20_000


def word_weights(prompts: Words, target: NDArray[np.float64], *, ridge: Ridge = Ridge()) -> Weights:
    """`target`: one number a prompt, such as the mean logarithm of output tokens. Rare words are left out."""
    names = _vocabulary(prompts, ridge)
    if not names:
        return {}
    found = lsqr(_matrix(prompts, names), target - target.mean(), damp=ridge.damp)[0]
    return {word: float(np.round(found[at], 4)) for word, at in names.items()}


def folded(
    prompts: Words, target: NDArray[np.float64], *, groups: NDArray[np.str_], ridge: Ridge = Ridge()
) -> NDArray[np.float64]:
    """Each prompt's score by weights that have not seen its group: what a model may be trained on."""
    _, place = np.unique(groups, return_inverse=True)
    fold = np.random.default_rng(5).permutation(place.max() + 1)[place] % 5
    scores = np.zeros(len(prompts))
    for each in range(5):
        seen = np.flatnonzero(fold != each)
        weights = word_weights([prompts[int(at)] for at in seen], target[seen], ridge=ridge)
        for at in np.flatnonzero(fold == each):
            scores[at] = score(prompts[int(at)], weights)
    return scores


def score(words: frozenset[bytes], weights: Weights) -> float:
    """As `Lexicon.scores` for one of its parts."""
    return sum(weights[word] for word in words if word in weights)


def _vocabulary(prompts: Words, ridge: Ridge) -> dict[bytes, int]:
    counts = Counter(word for words in prompts for word in words if len(word) <= MAX_WORD_BYTES)
    common = [word for word, n in counts.most_common(ridge.most_words) if n >= ridge.least and _clean(word)]
    return {word: at for at, word in enumerate(sorted(common))}


def _clean(word: bytes) -> bool:
    """Whole UTF-8 without figures: a number is no word, and a window may cut a letter."""
    try:
        text = word.decode()
    except UnicodeDecodeError:
        return False
    return not any(letter.isdigit() for letter in text)


def _matrix(prompts: Words, names: dict[bytes, int]) -> "csr_array":
    pairs = [(at, names[word]) for at, words in enumerate(prompts) for word in words if word in names]
    rows, columns = np.array(pairs).reshape(-1, 2).T
    return csr_array((np.ones(len(pairs)), (rows, columns)), shape=(len(prompts), len(names)))
