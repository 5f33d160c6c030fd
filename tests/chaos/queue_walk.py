"""A random walk over all of the queue's commands, with everything that can go wrong on the way.

Calls are delivered twice, or once more because the answer was lost; workers go on writing with leases that are not
theirs any more; the server forgets its scripts, runs out of memory, and is replaced by a replica that missed the last
writes and whose clock may be behind. `queue_rules.py` says what must hold after each step.
"""

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, initialize, multiple, precondition, rule

from broker import scripts
from broker.consumer import BARRED
from broker.errors import QueueFull
from broker.policy import Asking, Breaker, Limits, Order, Room
from broker.scripts import Beat, Ending, Return
from tests.broker.jobs import ERROR, KEYS, POOL
from tests.chaos import queue_rules
from tests.chaos.queue_draws import (
    ALWAYS_LET_IN,
    DELIVERIES,
    SET_BACK_MS,
    WORKERS,
    Draw,
    draws,
    picks,
    rarely,
    rooms,
)
from tests.chaos.queue_state import State
from tests.chaos.walker import Held, Walker

LEASE_S = 10.0
ORDER = Order()
TOUCHY = Breaker(share=0.1, requests=1, window_s=60.0, open_s=1.0, probes=1)  # it opens at any error
LONGEST_OPEN_MS = 900_000  # however far the clock is put back
ENDINGS = {ok: Ending(ok, b'{"answer":1}' if ok else ERROR, 3, 5, 1) for ok in (True, False)}
SETTLED_MS = 1000  # by then nobody is left a job because he would serve it better
REAP_EVERY_S = 60.0  # of the server's time: a reap that comes twice does nothing the second time


class QueueWalk(Walker):
    jobs: Bundle[str] = Bundle("jobs")
    limits = Limits(lease_s=LEASE_S)

    @initialize(target=jobs, drawn=st.lists(draws, min_size=4, max_size=10), most=st.integers(0, 1))
    def start_with_some(self, drawn: list[Draw], most: int) -> Any:
        """`most`: errors, and deaths, that a job survives."""
        self.limits = Limits(lease_s=LEASE_S, max_errors=most, max_deaths=most, breaker=TOUCHY)
        return self.enqueue_all(drawn, how="once", many=False)

    @rule(target=jobs, drawn=st.lists(draws, min_size=1, max_size=4), how=DELIVERIES, many=st.booleans())
    def enqueue(self, drawn: list[Draw], how: str, many: bool) -> Any:
        return self.enqueue_all(drawn, how=how, many=many)

    def enqueue_all(self, drawn: list[Draw], *, how: str, many: bool) -> Any:
        """`many`: as many as were drawn, all like the first one, in one call."""
        asked = [(drawn[0] if many else draw).submission(self.new_id()) for draw in drawn]
        calls = [scripts.enqueue(job, ORDER) for job in asked]
        self.deliver("enqueue", [scripts.enqueue_many(asked, ORDER)] if many else calls, how=how)
        return multiple(*(job.job_id for job in asked))

    @rule(drawn=draws)
    def enqueue_with_memory_full(self, drawn: Draw) -> None:
        self.step = "memory full"
        before = self.snapshot()
        with self.memory_full(), pytest.raises(QueueFull):
            self.ask(scripts.enqueue(drawn.submission(self.new_id()), ORDER))
        assert self.snapshot() == before

    @rule(worker=WORKERS, room=rooms, lost=rarely, full=rarely)
    def claim(self, worker: str, room: Room, lost: bool, full: bool) -> None:
        """`lost`: the answer does not arrive, and the worker claims again. `full`: memory is."""
        self.deliver(
            "claim", [scripts.urgent(POOL)], how="twice"
        )  # as a full worker asks before it makes room
        if lost:
            self.claim_once(worker, Room(1))
        with self.memory_full(really=full):
            self.leases += self.claim_once(worker, room)

    @rule(worker=WORKERS, n=st.integers(1, 4))
    def claim_what_is_next(self, worker: str, n: int) -> None:
        self.step = "claim"
        self.leases += self.claim_once(worker, Room(n))

    def claim_once(self, worker: str, room: Room) -> list[Held]:
        self.backdoor.ask("ZPOPMIN", KEYS.named("marker"))  # as the worker that it woke
        before = State.read(self.pair.master)
        [[more, due_ms, *rows]] = self.ask(scripts.claim(POOL, Asking(worker, LEASE_S), room=room))
        after = State.read(self.pair.master)
        held = [Held(row[0].decode(), row[1], worker, self.now) for row in rows]
        taken = [one.job_id for one in held]
        assert not before.paused or not taken
        assert more != BARRED or (not taken and 0 < due_ms <= LONGEST_OPEN_MS), "a breaker opens for a time"
        assert all(float(after.jobs[i]["deadline"]) > self.now for i in taken), "it was too late for that"
        queue_rules.check_room(after, taken, room=room)
        if room == Room(room.slots):
            queue_rules.check_order(before, after, taken=taken, settled=self.now - SETTLED_MS)
        assert not [i for i, at in after.of("aging").items() if at <= self.now], "it was not promoted in time"
        return held

    @precondition(lambda self: self.leases)
    @rule(worker=WORKERS, which=st.lists(picks, max_size=3, unique=True), stale=rarely)
    def renew(self, worker: str, which: list[int], stale: bool) -> None:
        self.step = "renew"
        held = {one for one in (self.pick(n, stale=stale) for n in which) if one}
        beat = Beat(worker, b"{}", tuple((one.job_id, one.token) for one in held), LEASE_S)
        [[_, *lost]] = self.ask(scripts.renew(POOL, beat))
        ends = State.read(self.pair.master).of("leases")
        expected = sorted(one.job_id.encode() for one in held if not one.is_valid(self.before))
        assert sorted(lost) == expected, f"lost: {lost} of {held}, but should be {expected}"
        assert all(ends[one.job_id] > self.now for one in held if one.is_valid(self.before))

    @precondition(lambda self: self.leases)
    @rule(which=picks, stale=rarely, count=st.integers(1, 3), how=ALWAYS_LET_IN)
    def append(self, which: int, stale: bool, count: int, how: str) -> None:
        if held := self.pick(which, stale=stale):
            seq = int(self.before.jobs.get(held.job_id, {}).get("seq", "0")) + count
            call = scripts.append(held.job_id, held.token, seq=seq, data=b"{}", maxlen=1000)
            if held.is_valid(self.before):
                assert self.deliver("append", [call], how=how) == [1]
            else:
                self.ask_in_vain(call, answers=(0,))

    @precondition(lambda self: self.leases)
    @rule(which=picks, stale=rarely, succeeded=st.booleans(), how=ALWAYS_LET_IN)
    def finish(self, which: int, stale: bool, succeeded: bool, how: str) -> None:
        if held := self.pick(which, stale=stale):
            call = scripts.finish(held.job_id, held.token, ending=ENDINGS[succeeded])
            if not held.is_valid(self.before):
                return self.ask_in_vain(call, answers=([0], [2]))
            answers = self.deliver("finish", [call], how=how)
            assert answers == [[2 if how == "unanswered" else 1]]
        return None

    @precondition(lambda self: self.leases)
    @rule(
        which=picks,
        stale=rarely,
        reason=st.sampled_from(["error", "error", "busy", "drain", "preempt"]),
        delay_s=st.sampled_from([0.0, 3.0]),
        how=ALWAYS_LET_IN,
    )
    def release(self, which: int, stale: bool, reason: str, delay_s: float, how: str) -> None:
        if held := self.pick(which, stale=stale):
            given = Return(reason, delay_s=delay_s, error=ERROR)
            call = scripts.release(held.job_id, held.token, given=given, limits=self.limits)
            if not held.is_valid(self.before):
                return self.ask_in_vain(call, answers=(0,))
            [answer] = self.deliver("release", [call], how=how)
            assert answer == 0 if how == "unanswered" else answer in (1, 2)
        return None

    @rule(job_id=jobs, which=picks, ended=rarely, how=ALWAYS_LET_IN)
    def cancel(self, job_id: str, which: int, ended: bool, how: str) -> None:
        """`ended`: most likely."""
        pending = [i for i, job in sorted(self.before.jobs.items()) if job["status"] in ("queued", "running")]
        chosen = pending[which % len(pending)] if pending and not ended else job_id
        self.deliver("cancel", [scripts.cancel(chosen)], how=how)

    @rule(job_id=jobs, which=picks, how=ALWAYS_LET_IN)
    def feed(self, job_id: str, which: int, how: str) -> None:
        """One that is held, or waits to be tried again."""
        delayed = sorted(self.before.of("delayed"))
        chosen = delayed[which % len(delayed)] if delayed else job_id
        self.deliver("feed", [scripts.feed(chosen)], how=how)

    @rule(target=jobs, job_id=jobs, how=DELIVERIES)
    def redrive(self, job_id: str, how: str) -> Any:
        """Where there is no dead letter yet, an engine fails first."""
        dead = sorted(self.before.of("dead"))
        if not dead and (held := self.pick(0, stale=False)):
            given = Return("error", error=ERROR)
            self.deliver(
                "release",
                [scripts.release(held.job_id, held.token, given=given, limits=self.limits)],
                how=how,
            )
            return multiple()
        old, new_id = dead[0] if dead else job_id, self.new_id()
        self.deliver("redrive", [scripts.redrive(old, new_id, deadline_s=1000.0)], how=how)
        return multiple(*[new_id] * bool(dead))

    @rule(how=ALWAYS_LET_IN)
    def reap(self, how: str) -> None:
        self.backdoor.let_reap()
        self.deliver("reap", [scripts.reap(POOL, self.limits, every_s=REAP_EVERY_S)], how=how)
        state = State.read(self.pair.master)
        for suffix in ("leases", "deadlines", "delayed", "aging"):
            late = [i for i, at in state.of(suffix).items() if at <= self.now]
            assert not late or suffix == "delayed", f"{late} are still in {suffix}"
        longest = max(state.of("leases").values(), default=0.0)
        assert longest <= self.now + 2000 * LEASE_S, "a lease from before the clock was put back"

    @rule(worker=WORKERS, other=WORKERS, set_back_ms=SET_BACK_MS)
    def fail_over_mid_claim(self, worker: str, other: str, set_back_ms: int) -> None:
        """A worker has its answer, the new master has not seen the claim, and somebody else claims the same jobs."""
        self.pair.freeze()
        self.leases += self.claim_once(worker, Room(2))
        self.fail_over_now(set_back_ms)
        self.leases += self.claim_once(other, Room(2))
