"""The KV cache as pages: reference counts, and full pages that are found again by the hash of all that they depend on.

Invariant: a block is either free (no references, in the eviction order) or referenced; free + referenced = all. A free
block keeps its content until it is taken, so a finished request's prefix is cached for as long as nobody needs the room.
Source: the design of vLLM's prefix cache (chained hashes of full blocks, least recently used first).
"""

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence

BLOCK_TOKENS = 16
HASH_BYTES = 16


def root_hash(salt: str) -> bytes:
    """What the first block is chained to: equal prompts with different salts share nothing."""
    return hashlib.blake2b(salt.encode(), digest_size=HASH_BYTES).digest()


def chain(parent: bytes, tokens: Sequence[int]) -> bytes:
    """The hash of a full block: its tokens and, through the parent, all before them."""
    return hashlib.blake2b(parent + array("Q", tokens).tobytes(), digest_size=HASH_BYTES).digest()


class BlockPool:
    """`blocks` pages by number. Callers ask `free` before they take."""

    def __init__(self, blocks: int, *, caching: bool = True) -> None:
        self.total = blocks
        self._caching = caching
        self._references = [0] * blocks
        self._names: list[bytes | None] = [None] * blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(blocks))  # evicted from the front
        self._cached: dict[bytes, int] = {}

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def used(self) -> int:
        return self.total - len(self._free)

    def references(self, block: int) -> int:
        return self._references[block]

    def find(self, names: Iterable[bytes]) -> list[int]:
        """The blocks that hold the longest cached beginning of the chain. They are not referenced yet."""
        found: list[int] = []
        for name in names:
            block = self._cached.get(name)
            if block is None:
                break
            found.append(block)
        return found

    def unreferenced(self, blocks: Iterable[int]) -> int:
        """How many of them count as free now, and would not once they are shared."""
        return sum(block in self._free for block in blocks)

    def take(self, count: int) -> list[int]:
        """Blocks with one reference each; what the least recently used ones held is forgotten."""
        assert count <= self.free, "blocks are counted before they are taken"
        taken = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in taken:
            self._references[block] = 1
        self.forget(taken)
        return taken

    def share(self, blocks: Iterable[int]) -> None:
        """One more reference to each."""
        for block in blocks:
            if not self._references[block]:
                del self._free[block]
            self._references[block] += 1

    def drop(self, blocks: Iterable[int]) -> None:
        """One reference less to each. Those that nobody needs are evicted in the order that they are given here."""
        for block in blocks:
            assert self._references[block] > 0, "a block is dropped as often as it is referenced"
            self._references[block] -= 1
            if not self._references[block]:
                self._free[block] = None

    def name(self, block: int, content: bytes) -> None:
        """A referenced block is full. Of two with the same content the first is found."""
        if self._caching and content not in self._cached and self._names[block] is None:
            self._names[block] = content
            self._cached[content] = block

    def forget(self, blocks: Iterable[int]) -> None:
        """They are found no more: what they were named after is not, or never came to be, in them."""
        for block in blocks:
            name, self._names[block] = self._names[block], None
            if name is not None:
                del self._cached[name]

    def holds(self, block: int) -> bytes | None:
        """The hash that the block is found by."""
        return self._names[block]
