"""What every step of a walk needs: how calls get to the server and what they meet there, and the look afterwards."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from broker.connection import Pipe
from broker.job import derived_job_id
from broker.script import Call
from broker.steering import Wish, steer_pool
from tests.broker.jobs import POOL, Backdoor
from tests.broker.queue_audit import Ear
from tests.chaos import queue_rules
from tests.chaos.pair import CLOCK, Pair, on_our_clock
from tests.chaos.queue_draws import ADVANCES_MS, SET_BACK_MS
from tests.chaos.queue_state import State

START_MS = 10**12
SHUFFLE = 0x9E3779B97F4A7C15  # so that ids do not sort as they were made
ONE_IN = 4  # of the draws that could let the server fail over, for a new replica takes a while to be filled


@dataclass(frozen=True)
class Held:
    """What a worker was given by one claim. It is the job's own lease as long as the job says so."""

    job_id: str
    token: int
    worker: str
    claimed: int

    def is_valid(self, state: State) -> bool:
        job = state.jobs.get(self.job_id, {})
        found = (job.get("status"), job.get("worker"), job.get("claimed"))
        return found == ("running", self.worker, str(self.claimed))


class Walker(RuleBasedStateMachine):
    """`counts`: of steps by their names, over all walks."""

    counts: ClassVar[Counter[str]] = Counter()

    def __init__(self, pair: Pair) -> None:
        super().__init__()
        self.pair = pair
        pair.begin()
        self.runner = asyncio.Runner()
        self.now = START_MS
        self.step = ""
        self.leases: list[Held] = []
        self._made = 0
        self._full = False
        self._connect()

    def _connect(self) -> None:
        """To the master as it is now, whose word counts."""
        self.pipe = Pipe(self.pair.url)
        self.backdoor = Backdoor(self.pair.master)
        self.ear = Ear(self.pair.master)
        self.backdoor.ask("SET", CLOCK, self.now)
        self.before = State.read(self.pair.master)
        self._ended = {i for i in self.before.jobs if self.before.status(i) in queue_rules.ENDED}
        self._aborts = Counter[tuple[str, int]]()

    def _disconnect(self) -> None:
        self.runner.run(self.pipe.close())
        self.ear.close()

    def teardown(self) -> None:
        self._disconnect()
        self.runner.close()

    def tick(self) -> None:
        """So that no two calls come at the same time; with memory full the clock stands, for it is a key."""
        if not self._full:
            self.now += 1
            self.backdoor.ask("SET", CLOCK, self.now)

    def ask(self, *calls: Call) -> list[Any]:
        self.tick()
        return self.runner.run(self.pipe.run_all([on_our_clock(call) for call in calls]))

    def deliver(self, step: str, calls: list[Call], *, how: str) -> list[Any]:
        """The answers that the caller sees. What is repeated changes nothing more."""
        self.step = step
        with self.memory_full(really=how == "memory full"):
            answers = self.ask(*calls)
        if how in ("once", "memory full"):
            return answers
        if how == "unanswered":
            self.runner.run(self.pipe.close())
            self.pipe = Pipe(self.pair.url)
        before = self.snapshot()
        again = self.ask(*calls)
        assert self.snapshot() == before, f"{step}, done again, changed something"
        return again if how == "unanswered" else answers

    def ask_in_vain(self, call: Call, *, answers: tuple[Any, ...]) -> None:
        """With a lease that is not the job's any more: nothing changes."""
        self.step = "stale"
        before = self.snapshot()
        [answer] = self.ask(call)
        assert self.snapshot() == before, f"{call.script.name} wrote with a stale token"
        assert answer in answers

    @contextmanager
    def memory_full(self, *, really: bool = True) -> Iterator[None]:
        if really:
            self.tick()
            self.backdoor.fill_memory()
        self._full = really
        try:
            yield
        finally:
            self.backdoor.free_memory()
            self._full = False

    def snapshot(self) -> dict[bytes, bytes]:
        return {key: value for key, value in self.backdoor.snapshot().items() if key != CLOCK.encode()}

    def new_id(self) -> str:
        self._made += 1
        return derived_job_id(POOL, seed=self._made * SHUFFLE % 2**64)

    def pick(self, which: int, *, stale: bool) -> Held | None:
        """One of the leases that are still good; or of those that were, first of all of jobs that others now run."""
        valid = [one for one in self.leases if one.is_valid(self.before)]
        old = [one for one in self.leases if one not in valid]
        taken = [one for one in old if self.before.status(one.job_id) == "running"]
        found = (taken or old) if stale else valid
        return found[-1 - which % len(found)] if found else None

    @rule(ms=ADVANCES_MS)
    def let_time_pass(self, ms: int) -> None:
        self.step = "wait"
        self.now += ms

    @rule(by=st.sampled_from(["fall behind", "pause or resume", "script flush"]))
    def disturb(self, by: str) -> None:
        """The server forgets its scripts; its replica misses what comes from here on; an operator steps in."""
        self.step = by
        if by == "script flush":
            self.backdoor.ask("SCRIPT", "FLUSH")
        elif by == "fall behind":
            self.pair.freeze()
        else:
            wish = Wish.RESUME if self.before.paused else Wish.PAUSE
            self.runner.run(steer_pool(self.pipe, [POOL], wish=wish))

    @rule(chance=st.integers(1, ONE_IN), set_back_ms=SET_BACK_MS)
    def fail_over(self, chance: int, set_back_ms: int) -> None:
        """What the replica has missed never was: from here on its word counts. Workers keep what leases they have."""
        self.step = "fail over"
        if chance <= 1 + 2 * self.pair.frozen:
            self.fail_over_now(set_back_ms)

    def fail_over_now(self, set_back_ms: int) -> None:
        self.step = "fail over"
        self._disconnect()
        self.pair.fail_over()
        self.now -= set_back_ms
        self._connect()
        self.counts["failovers"] += 1
        self.counts["clocks set back"] += set_back_ms > 0

    @invariant()
    def the_rules_hold(self) -> None:
        after = State.read(self.pair.master)
        queue_rules.check_state(after)
        if self.step != "fail over":
            self._aborts += queue_rules.check_moves(self.before, after, step=self.step, now=self.now)
        self._check_told(after)
        self.before = after
        self.counts[self.step or "begin"] += 1

    def _check_told(self, state: State) -> None:
        """Each end is told once, as what it is; an engine whose work is void is told to stop."""
        self.ear.listen()
        ends = {(i, state.status(i)) for i in state.jobs if state.status(i) in queue_rules.ENDED}
        assert self.ear.ends == Counter(end for end in ends if end[0] not in self._ended)
        assert self.ear.aborts == self._aborts
