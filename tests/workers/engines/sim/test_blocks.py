"""The accounts of the KV cache, against a model that keeps them in the plainest way."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from workers.engines.sim.blocks import BlockPool, chain, root_hash

BLOCKS = 12
NAMES = [bytes([n]) * 16 for n in range(8)]


def test_a_hash_depends_on_the_tokens_all_before_them_and_the_salt() -> None:
    first = chain(root_hash(""), [1, 2])
    assert first == chain(root_hash(""), [1, 2])
    assert (
        len({first, chain(root_hash("x"), [1, 2]), chain(first, [1, 2]), chain(root_hash(""), [2, 1])}) == 4
    )


def test_what_was_used_longest_ago_is_evicted_first() -> None:
    pool = BlockPool(3)
    blocks = pool.take(3)
    for block, name in zip(blocks, NAMES, strict=False):
        pool.name(block, name)
    pool.drop([blocks[1]])
    pool.drop([blocks[2]])
    pool.drop([blocks[0]])
    pool.share(pool.find([NAMES[1]]))  # used again
    pool.drop([blocks[1]])
    assert pool.take(2) == [blocks[2], blocks[0]]
    assert [bool(pool.find([name])) for name in NAMES[:3]] == [False, True, False]


def test_a_gap_in_the_chain_ends_what_is_found() -> None:
    pool = BlockPool(3)
    blocks = pool.take(3)
    pool.name(blocks[0], NAMES[0])
    pool.name(blocks[2], NAMES[2])
    assert pool.find(NAMES[:3]) == [blocks[0]]


def test_nothing_is_found_when_caching_is_off() -> None:
    pool = BlockPool(1, caching=False)
    pool.name(pool.take(1)[0], NAMES[0])
    assert pool.find([NAMES[0]]) == []


class Accounts(RuleBasedStateMachine):
    """`held`: every reference that somebody has. `content`: what each block was last filled with."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(BLOCKS)
        self.held: list[int] = []
        self.content: dict[int, bytes] = {}

    @rule(count=st.integers(0, 4))
    def take(self, count: int) -> None:
        if count > self.pool.free:
            return
        taken = self.pool.take(count)
        assert not set(taken) & set(self.held), "a block that is in use is given away"
        assert len(set(taken)) == count
        self.held += taken
        for block in taken:
            self.content.pop(block, None)

    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        if self.held:
            block = data.draw(st.sampled_from(self.held))
            self.held.remove(block)
            self.pool.drop([block])

    @rule(data=st.data(), name=st.sampled_from(NAMES))
    def fill(self, data: st.DataObject, name: bytes) -> None:
        if self.held:
            block = data.draw(st.sampled_from(self.held))
            known = set(self.content.values())
            self.pool.name(block, name)
            if block not in self.content and name not in known:
                self.content[block] = name

    @rule(name=st.sampled_from(NAMES))
    def hit(self, name: bytes) -> None:
        found = self.pool.find([name])
        assert found == [block for block, held in self.content.items() if held == name]
        self.pool.share(found)
        self.held += found

    @invariant()
    def the_sums_are_right(self) -> None:
        references = Counter(self.held)
        assert [self.pool.references(block) for block in range(BLOCKS)] == [
            references[b] for b in range(BLOCKS)
        ]
        assert self.pool.used == len(references)
        assert self.pool.free + self.pool.used == self.pool.total == BLOCKS
        assert {block: self.pool.holds(block) for block in self.content} == self.content


TestAccounts = Accounts.TestCase
TestAccounts.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
