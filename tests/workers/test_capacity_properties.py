"""The ledger under any course of events: slots are conserved, and the cache is over by one page of each job at most."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, MultipleResults, RuleBasedStateMachine, invariant, multiple, rule

from tests.workers.leases import lease
from workers.capacity import Ledger, Plan
from workers.kv_pages import PAGE_TOKENS, paged, peak_tokens

SLOTS, KV_TOKENS = 8, 4000
jobs = st.lists(st.tuples(st.integers(0, 500), st.integers(0, 500)), max_size=12)


@given(jobs)
def test_the_peak_is_what_playing_it_out_token_by_token_finds(running: list[tuple[int, int]]) -> None:
    totals = [
        sum(held + at for held, to_come in running if at <= to_come)
        for at in range(max((to_come for _, to_come in running), default=0) + 1)
    ]
    assert peak_tokens(running) == max(totals)


class Play(RuleBasedStateMachine):
    """Jobs whose answers may be many times longer than predicted, on a cache that cannot hold them all."""

    names: Bundle[str] = Bundle("names")

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(Plan(SLOTS, kv_tokens=KV_TOKENS))
        self.now = 0.0
        self.running: dict[str, tuple[int, int]] = {}  # prompt, output
        self.count = 0

    @rule(
        target=names,
        service_class=st.integers(0, 3),
        prompt=st.integers(1, 1500),
        output=st.integers(1, 200),
    )
    def claim(self, service_class: int, prompt: int, output: int) -> str | MultipleResults[str]:
        """As the queue does: only what fits the room."""
        room = self.ledger.room(now=self.now)
        fits = room.kv_tokens is None or prompt + output <= room.kv_tokens
        if not fits or not (room.bulk_slots if service_class >= 2 else room.slots):
            return multiple()
        self.count += 1
        job = lease(f"j{self.count}", service_class, kv_tokens=prompt + output, prompt_tokens=prompt)
        self.ledger.take(job, now=self.now)
        self.running[job.job_id] = (prompt, 0)
        self.relieve()
        return job.job_id

    @rule(steps=st.integers(1, 40))
    def decode(self, steps: int) -> None:
        """All jobs of the batch get a page full of tokens with each step."""
        for name in [name for _ in range(steps) for name in self.running]:
            if name in self.running:
                self.now += 0.02
                prompt, output = self.running[name]
                self.running[name] = (prompt, output + PAGE_TOKENS)
                if self.ledger.grow(name, PAGE_TOKENS, now=self.now) is not None:
                    self.relieve()
                self.the_cache_is_over_by_one_growth_at_most_while_somebody_can_be_stopped()

    @rule(name=names)
    def end(self, name: str) -> None:
        if name in self.running:
            self.ledger.learn(name, None, now=self.now)
            self.leave(name)

    @rule()
    def miss(self) -> None:
        self.ledger.missed(now=self.now)

    def relieve(self) -> None:
        victim = self.ledger.relief(now=self.now)
        if victim is not None:
            self.ledger.stop(victim)
            self.leave(victim)

    def leave(self, name: str) -> None:
        del self.running[name]
        self.ledger.give_back(name)

    @invariant()
    def slots_are_conserved(self) -> None:
        assert self.ledger.busy == len(self.running)
        assert self.ledger.busy + self.ledger.free == SLOTS
        assert 0 <= self.ledger.room(now=self.now).bulk_slots <= self.ledger.free  # type: ignore[operator]

    @invariant()
    def the_cache_is_over_by_one_growth_at_most_while_somebody_can_be_stopped(self) -> None:
        live = sum(paged(prompt + output) for prompt, output in self.running.values())
        if self.ledger.victim(now=self.now) is not None and len(self.running) > 1:
            assert live <= KV_TOKENS + PAGE_TOKENS * len(self.running)


Play.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPlay = Play.TestCase
