"""What must hold of a pool after every step, and between two steps: invariants 1, 2 and 4 to 10 of the design.

No model: the scripts may do what they like within these rules. (3 is held by the memory step of the walk, and by
tests/broker/test_lua_headers.py.)
"""

from collections import Counter

from broker.keys import is_permanent
from broker.policy import Room
from tests.broker.jobs import KEYS
from tests.chaos.pair import CLOCK
from tests.chaos.queue_state import Hash, State

ENDED = ("succeeded", "failed", "cancelled", "expired")
FIXED = ("class", "score", "created", "deadline", "tenant", "cap", "need", "ptok", "pfx")
MOVES = {
    "enqueue": {("", "queued")},
    "redrive": {("", "queued")},
    "claim": {("queued", "running"), ("queued", "expired")},
    "finish": {("running", "succeeded"), ("running", "failed")},
    "release": {("running", "queued"), ("running", "failed")},
    "cancel": {("queued", "cancelled"), ("running", "cancelled")},
    "reap": {("running", "queued"), ("running", "failed"), ("running", "expired"), ("queued", "expired")},
}
EXPECTED_REPAIRS = ("reconciled:lease_too_long",)  # what a clock that is put back calls for


def number(job: Hash, name: str) -> int:
    return int(float(job.get(name, "0")))


def check_state(state: State) -> None:
    for job_id, job in state.jobs.items():
        check_job(state, job_id, job)
    for suffix, members in state.sets.items():
        if suffix not in ("marker", "urgent", "workers", "index", "spare"):
            assert set(members) <= set(state.jobs), f"{suffix} has members without a job"
    check_keys(state)
    check_counters(state)
    check_caps(state)
    waiting = any(state.of(f"{kind}:{level}") for kind in ("ready", "aged") for level in range(4))
    assert not waiting or state.paused or state.of("marker"), "jobs are ready and nothing wakes a worker"


def check_job(state: State, job_id: str, job: Hash) -> None:
    places = state.places(job_id)
    timed = [name for name in ("deadlines", "aging") if job_id in state.of(name)]
    leased = job_id in state.of("leases")
    match job["status"]:
        case "queued":
            assert len(places) == 1, f"{job_id} is queued and in {places}"
            assert timed, f"{job_id} is queued and nothing ends it at its deadline"
            assert not leased
            level = job.get("level", job["class"])
            home = f"aged:{level}" if level < job["class"] else f"ready:{job['class']}"
            assert places[0] in (home, "delayed", f"capped:{job['tenant']}")
        case "running":
            assert (places, timed, leased) == ([], ["deadlines"], True), (
                f"{job_id} runs: {places} {timed} {leased}"
            )
        case _:
            assert (places, timed, leased) == ([], [], False), f"{job_id}: {places} {timed} {leased}"
    pending = job["status"] in ("queued", "running")
    assert (state.ttl_ms[f"job:{job_id}"] == -1) == pending
    kept = job_id in state.of("dead")
    payload = state.ttl_ms.get(f"in:{job_id}")
    assert payload == -1 if pending else payload is None or kept, f"{job_id}: the request's TTL is {payload}"


def check_keys(state: State) -> None:
    pending = {job_id for job_id, job in state.jobs.items() if job["status"] in ("queued", "running")}
    for suffix, ttl in state.ttl_ms.items():
        if ttl == -1 and KEYS.named(suffix) != CLOCK:
            owner = suffix.partition(":")[2]
            waits = suffix.startswith("capped:")  # goes with the last job in it
            assert waits or is_permanent(KEYS.named(suffix)) or owner in pending, f"{suffix} has no TTL"


def check_counters(state: State) -> None:
    """Everything that was accepted is somewhere, and counted once."""
    expected = Counter[str]()
    for job in state.jobs.values():
        c = job["class"]
        expected[f"enqueued:{c}"] += 1
        expected[f"claimed:{c}"] += number(job, "attempts")
        expected["deaths"] += number(job, "deaths")
        expected[f"queued:{c}"] += job["status"] == "queued"
        expected[f"queued_ms:{c}"] += number(job, "cost") * (job["status"] == "queued")
        if job["status"] in ENDED:
            expected[f"{job['status']}:{c}"] += 1
    found = Counter({name: int(float(state.stats.get(name, "0"))) for name in expected})
    assert found == expected, f"counted {found}, there are {expected}"
    repairs = {name for name in state.stats if name.startswith("reconciled:")}
    assert repairs <= set(EXPECTED_REPAIRS), f"the scripts left something to repair: {repairs}"


def check_caps(state: State) -> None:
    running = Counter(j["tenant"] for j in state.jobs.values() if j["status"] == "running" and "cap" in j)
    assert state.running == dict(running)
    for job in state.jobs.values():
        assert running[job["tenant"]] <= number(job, "cap") or "cap" not in job
    for suffix, members in state.sets.items():
        kind, _, tenant = suffix.partition(":")
        others = [i for i, job in state.jobs.items() if job["tenant"] == tenant and i not in members]
        moving = running[tenant] or any(state.status(i) == "queued" for i in others)
        assert kind != "capped" or not members or moving, f"nothing will let {members} in"


def check_moves(before: State, after: State, *, step: str, now: int) -> Counter[tuple[str, int]]:
    """What happened to each job in one step. Returns the aborts (job, token) that it calls for."""
    aborts = Counter[tuple[str, int]]()
    for job_id in before.jobs.keys() | after.jobs.keys():
        old, new = before.jobs.get(job_id, {}), after.jobs.get(job_id, {})
        was, became = before.status(job_id), after.status(job_id)
        assert new, f"{job_id} has vanished"
        if was != became:
            assert (was, became) in MOVES.get(step, ()), f"{step} made {job_id} {became}, which was {was}"
            if was == "running" and became in ENDED and became != "succeeded":
                aborts[job_id, number(old, "token")] += 1
        if old:
            check_move(before, after, job_id=job_id, now=now)
    return aborts


def check_move(before: State, after: State, *, job_id: str, now: int) -> None:
    old, new = before.jobs[job_id], after.jobs[job_id]
    was, became = old["status"], new["status"]
    assert [old.get(name) for name in FIXED] == [new.get(name) for name in FIXED], f"{job_id} was rewritten"
    claimed = became == "running" and was == "queued"
    assert number(new, "attempts") == number(old, "attempts") + claimed
    grown = number(new, "token") - number(old, "token")
    assert grown > 0 if claimed else grown == 0, f"{job_id}: the token went up by {grown}"
    if became == "expired" != was:
        assert number(old, "deadline") <= now, f"{job_id} expired before its deadline"
    died = number(new, "deaths") - number(old, "deaths")
    if died:
        assert before.of("leases")[job_id] <= now, f"{job_id} was taken from a worker whose lease lasts"
    assert died == 0 or (died == 1 and was == "running")
    rose = int(old.get("level", old["class"])) - int(new.get("level", new["class"]))
    assert rose in (0, 1)
    if rose:
        assert before.of("aging")[job_id] <= now, f"{job_id} was promoted before its time"


def check_room(state: State, taken: list[str], *, room: Room) -> None:
    """An idle worker's first job may be of any size, and so may a batch prompt that is read alone."""
    jobs, slots = [state.jobs[job_id] for job_id in taken], room.total_slots or room.slots
    used = [min(number(job, "slots") or 1, slots) for job in jobs]
    sized = jobs[1:] if room.slots >= slots else jobs
    assert sum(used) <= room.slots
    assert room.kv_tokens is None or sum(number(job, "need") for job in sized) <= room.kv_tokens
    prompts = [number(job, "ptok") for job in jobs if job["class"] >= "2" and number(job, "ptok")]
    alone = len(prompts) == 1 and room.prefill_tokens == room.prefill_total_tokens
    assert room.prefill_tokens is None or alone or sum(prompts) <= room.prefill_tokens
    low = [n for job, n in zip(jobs, used, strict=True) if job["class"] >= "2"]
    assert room.bulk_slots is None or sum(low[:-1]) < max(1, room.bulk_slots)
    assert room.bulk_slots != 0 or not low


def check_order(before: State, after: State, *, taken: list[str], settled: int) -> None:
    """Of a worker with room for anything. Jobs of the class itself: strictly by class, then by score, ties by id.

    Jobs newer than `settled` may be left to a worker that serves them better; promoted ones have a share of their own. One
    of several choices needs as many slots, which may not be free.
    """

    def key(state: State, job_id: str) -> tuple[str, float, str]:
        return (state.jobs[job_id]["class"], float(state.jobs[job_id]["score"]), job_id)

    own = [
        key(after, i)
        for i in taken
        if after.jobs[i].get("level", after.jobs[i]["class"]) == after.jobs[i]["class"]
    ]
    assert own == sorted(own)
    left = [i for c in range(4) for i in after.of(f"ready:{c}") if i in before.of(f"ready:{c}")]
    single = [i for i in left if number(after.jobs[i], "slots") <= 1]
    passed = [key(after, i) for i in single if number(after.jobs[i], "created") <= settled]
    assert not own or not passed or own[-1] < min(passed), f"{min(passed)} was passed over"
