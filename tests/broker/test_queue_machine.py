"""Random walks over the queue's commands on a real Redis, each step compared with the model.

HEADWAY_TEST_EXAMPLES sets how many walks there are; a failing one is printed as a program.
"""

import asyncio
import os
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from broker import scripts
from broker.connection import Pipe
from broker.job import derived_job_id
from broker.policy import Asking, Limits, Order, Room
from broker.script import Call
from broker.scripts import Beat, Return
from tests.broker import queue_audit
from tests.broker.jobs import ERROR, KEYS, POOL, Backdoor
from tests.broker.queue_draws import ENDINGS, FAR_S, Spec, picks, specs
from tests.broker.queue_model import MAX_DEATHS, MAX_ERRORS, Job, Model

EXAMPLES = int(os.environ.get("HEADWAY_TEST_EXAMPLES", "100"))
STEPS = 40
LIMITS = Limits(lease_s=FAR_S, max_errors=MAX_ERRORS, max_deaths=MAX_DEATHS)
ORDER = Order(sjf_weight=1.5, priority_step_s=3600.0)
SHUFFLE = 0x9E3779B97F4A7C15  # so that ids do not sort as they were made


class QueueMachine(RuleBasedStateMachine):
    jobs: Bundle[str] = Bundle("jobs")

    def __init__(self, url: str) -> None:
        super().__init__()
        self._client = redis.Redis.from_url(url)
        self._client.flushall()
        self._runner = asyncio.Runner()
        self._pipe = Pipe(url)
        self.backdoor = Backdoor(self._client)
        self.ear = queue_audit.Ear(self._client)
        self.model = Model()
        self._made = 0

    def teardown(self) -> None:
        self._client.flushall()
        self._runner.run(self._pipe.close())
        self._runner.close()
        self.ear.close()
        self._client.close()

    def run(self, *calls: Call) -> list[Any]:
        return self._runner.run(self._pipe.run_all(calls))

    def some(self, place: str) -> bool:
        return bool(self.model.in_place(place))

    def pick(self, place: str, which: int) -> Job:
        ids = sorted(self.model.in_place(place))
        return self.model.jobs[ids[which % len(ids)]]

    def new_id(self) -> str:
        self._made += 1
        return derived_job_id(POOL, seed=self._made * SHUFFLE % 2**64)

    @initialize(target=jobs, drawn=st.lists(specs, min_size=2, max_size=6))
    def start_with_some(self, drawn: list[Spec]) -> Any:
        return self.submit(drawn)

    @rule(target=jobs, drawn=st.lists(specs, min_size=1, max_size=4))
    def enqueue(self, drawn: list[Spec]) -> Any:
        return self.submit(drawn)

    def submit(self, drawn: list[Spec]) -> Any:
        asked = [spec.submission(self.new_id()) for spec in drawn]
        answers = self.run(*(scripts.enqueue(job, ORDER) for job in asked))
        for spec, job, (refused, ahead, _, known) in zip(drawn, asked, answers, strict=True):
            now, cost_ms = float(self.backdoor.job(job.job_id)["created"]), round(spec.cost_s * 1000)
            start = self.model.start(job.tenant, now, cost_ms / spec.weight if spec.weight else None)
            score = start + 1.5 * cost_ms + 3_600_000 * spec.priority
            place = "delayed" if spec.held else "ready"
            entry = Job(job.job_id, spec.service_class, cost_ms, score, attached=spec.attached, place=place)
            expected = self.model.add(entry)
            assert (refused, known) == (0, None)
            assert spec.held or ahead == expected
        return multiple(*(job.job_id for job in asked))

    @rule(job_id=jobs, spec=specs)
    def enqueue_again(self, job_id: str, spec: Spec) -> None:
        before = self.backdoor.snapshot()
        again = scripts.enqueue(spec.submission(job_id), ORDER)
        assert self.run(again) == [[0, -1, -1, self.model.jobs[job_id].status.encode()]]
        assert self.backdoor.snapshot() == before

    @precondition(lambda self: self.some("ready"))
    @rule()
    def claim_one(self) -> None:
        self.claim_up_to(1)

    @rule(n=st.integers(1, 4))
    def claim(self, n: int) -> None:
        self.claim_up_to(n)

    def claim_up_to(self, n: int) -> None:
        self.backdoor.ask("ZPOPMIN", KEYS.named("marker"))  # as the worker that it woke
        [[more, wait_ms, *rows]] = self.run(scripts.claim(POOL, Asking("w1", FAR_S), room=Room(n)))
        self.model.end_delays()
        order = self.model.ready()
        alive = [job for job in order if not job.overdue]
        claimed = [row[0].decode() for row in rows]
        assert claimed == [job.job_id for job in alive][: len(claimed)]
        assert len(claimed) <= n
        self.check_expired(order, claimed)
        for row, job in zip(rows, alive, strict=False):
            self.model.take(job, row[1])
            assert (int(row[2]), int(row[6]), row[-1]) == (job.service_class, job.attempts, b"{}")
        assert bool(more) == bool(self.model.ready())
        assert len(claimed) == n or not more or self.late > 0
        assert (wait_ms == -1) == (not self.model.in_place("delayed"))

    def check_expired(self, order: list[Job], claimed: list[str]) -> None:
        """A late job is expired where claim comes across it, so at least before every job it leased."""
        passed = [job for job in order if claimed and job.order < self.model.jobs[claimed[-1]].order]
        found = [job for job in order if self.backdoor.status(job.job_id) == "expired"]
        assert all(job.overdue for job in found)
        assert all(job in found for job in passed if job.overdue)
        for job in found:
            self.model.end(job, "expired")
        self.late = len(found)

    @rule(
        drawn=st.lists(
            st.tuples(jobs, st.sampled_from([0, 0, -1])), max_size=4, unique_by=lambda pair: pair[0]
        )
    )
    def renew(self, drawn: list[tuple[str, int]]) -> None:
        held = tuple((i, self.model.jobs[i].token + offset) for i, offset in drawn)
        [[_, *lost]] = self.run(scripts.renew(POOL, Beat("w1", b"{}", held, FAR_S)))
        assert [i.decode() for i in lost] == [i for i, token in held if not self.model.jobs[i].holds(token)]
        for job_id, token in held:
            if self.model.jobs[job_id].holds(token):
                self.model.jobs[job_id].lease_over = False

    @precondition(lambda self: self.some("leased"))
    @rule(which=picks, count=st.integers(0, 3))
    def append(self, which: int, count: int) -> None:
        """`count` 0 repeats what was written before, as a worker does that saw no answer."""
        job = self.pick("leased", which)
        seq, data = job.seq + count, b"\n".join([b'{"c":1}'] * max(1, count))
        assert self.run(scripts.append(job.job_id, job.token, seq=seq, data=data, maxlen=1000)) == [1]
        if count:
            self.model.append(job, seq, data)

    @precondition(lambda self: self.some("leased"))
    @rule(which=picks, succeeded=st.booleans())
    def finish(self, which: int, succeeded: bool) -> None:
        job = self.pick("leased", which)
        call = scripts.finish(job.job_id, job.token, ending=ENDINGS[succeeded])
        assert self.run(call) == [[1]]
        self.model.end(job, "succeeded" if succeeded else "failed", ENDINGS[succeeded].data)

    @precondition(lambda self: self.some("leased"))
    @rule(which=picks, reason=st.sampled_from(["error", "error", "busy", "drain"]), delayed=st.booleans())
    def release(self, which: int, reason: str, delayed: bool) -> None:
        job = self.pick("leased", which)
        given = Return(reason, delay_s=FAR_S if delayed else 0.0, error=ERROR)
        answer = self.run(scripts.release(job.job_id, job.token, given=given, limits=LIMITS))
        assert answer == [self.model.release(job, reason, delayed=delayed, error=ERROR)]

    @rule(job_id=jobs, offset=st.sampled_from([0, -1, 1]), succeeded=st.booleans())
    def write_without_a_lease(self, job_id: str, offset: int, succeeded: bool) -> None:
        """All commands of a worker whose token is an old one, or whose job has ended or been taken away."""
        job = self.model.jobs[job_id]
        token = job.token + offset
        if job.holds(token):
            return
        before = self.backdoor.snapshot()
        done = offset == 0 and job.status == ("succeeded" if succeeded else "failed")
        answers = self.run(
            scripts.append(job_id, token, seq=job.seq + 1, data=b"{}", maxlen=1000),
            scripts.release(job_id, token, given=Return("error", error=ERROR), limits=LIMITS),
            scripts.finish(job_id, token, ending=ENDINGS[succeeded]),
        )
        assert answers == [0, 0, [2 if done else 0]]
        assert self.backdoor.snapshot() == before

    @rule(job_id=jobs)
    def cancel(self, job_id: str) -> None:
        job = self.model.jobs[job_id]
        before, status = self.backdoor.snapshot(), job.status.encode()
        assert self.run(scripts.cancel(job_id)) == [status]
        if job.pending:
            self.model.end(job, "cancelled")
        else:
            assert self.backdoor.snapshot() == before

    @rule(job_id=jobs)
    def feed(self, job_id: str) -> None:
        job, before = self.model.jobs[job_id], self.backdoor.snapshot()
        held = job.place == "delayed" and not job.attempts
        assert self.run(scripts.feed(job_id)) == [int(held)]
        if held:
            job.place, job.due = "ready", False
        else:
            assert self.backdoor.snapshot() == before

    @precondition(lambda self: any(j.pending and (j.overdue or j.due) for j in self.model.jobs.values()))
    @rule()
    def reap(self) -> None:
        self.backdoor.let_reap()
        assert self.run(scripts.reap(POOL, LIMITS)) == [self.model.reap(scripts.DEATH)]
        assert self.run(scripts.reap(POOL, LIMITS)) == [[]], "one process reaps at a time"

    @precondition(lambda self: self.some("leased"))
    @rule(which=picks, late=st.booleans())
    def lose_a_worker(self, which: int, late: bool) -> None:
        """`late`: its lease has run out, and nobody has reaped yet."""
        job = self.pick("leased", which)
        self.backdoor.end_lease(job.job_id)
        job.lease_over = True
        if not late:
            self.reap()

    @precondition(lambda self: self.some("delayed"))
    @rule(which=picks)
    def let_a_delay_pass(self, which: int) -> None:
        job = self.pick("delayed", which)
        self.backdoor.end_delay(job.job_id)
        job.due = True

    @precondition(lambda self: self.some("ready") or self.some("leased"))
    @rule(which=picks, place=st.sampled_from(["ready", "leased"]))
    def let_a_deadline_pass(self, which: int, place: str) -> None:
        job = self.pick(place if self.some(place) else "ready" if self.some("ready") else "leased", which)
        self.backdoor.pass_deadline(job.job_id)
        job.overdue = True

    @rule(target=jobs, job_id=jobs, which=picks)
    def redrive(self, job_id: str, which: int) -> Any:
        letters = [job for job in self.model.jobs.values() if job.dead and not job.redriven]
        old = letters[which % len(letters)] if letters and which % 4 else self.model.jobs[job_id]
        new_id, before, dead = self.new_id(), self.backdoor.snapshot(), old in letters
        assert self.run(scripts.redrive(old.job_id, new_id, deadline_s=FAR_S)) == [int(dead)]
        if not dead:
            assert self.backdoor.snapshot() == before
            return multiple()
        now = float(self.backdoor.job(new_id)["created"])
        self.model.add(Job(new_id, old.service_class, old.cost_ms, now))
        old.redriven = True
        return new_id

    @rule()
    def forget_the_scripts(self) -> None:
        self.backdoor.ask("SCRIPT", "FLUSH")

    @invariant()
    def redis_agrees_with_the_model(self) -> None:
        queue_audit.check_sets(self.model, self.backdoor)
        queue_audit.check_stats(self.model, self.backdoor)
        queue_audit.check_keys(self.model, self.backdoor)
        queue_audit.check_told(self.model, self.ear)
        for job in self.model.jobs.values():
            queue_audit.check_job(job, self.backdoor)


@pytest.mark.timeout(60 + EXAMPLES)
def test_queue_does_what_the_model_does(redis_url: str) -> None:
    class OnThisServer(QueueMachine):
        def __init__(self) -> None:
            super().__init__(redis_url)

    run_state_machine_as_test(
        OnThisServer,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            phases=[Phase.reuse, Phase.generate],  # shrinking takes minutes: a step is a dozen round trips
            suppress_health_check=list(HealthCheck),
        ),
    )
