"""What a walk draws: jobs of every kind, a worker's room, how a call is delivered."""

from dataclasses import dataclass

from hypothesis import strategies as st

from broker.job import Forecast, ServiceClass, Submission
from broker.policy import Room

HOUR_MS = 3_600_000
DELIVERIES = st.sampled_from(["once", "once", "once", "twice", "unanswered"])
ALWAYS_LET_IN = st.sampled_from(
    ["once", "once", "once", "twice", "unanswered", "memory full"]
)  # what ends or frees jobs
ADVANCES_MS = st.sampled_from([1, 50, 250, 2000, 8000, 8000, 11_000, 60_000, 11 * 60_000, HOUR_MS])
SET_BACK_MS = st.sampled_from([0, 0, 5000, 60_000, HOUR_MS])
WORKERS = st.sampled_from(["w0", "w1", "w2"])
PREFIXES = ("", "", "a", "a,b", "c")
picks = st.integers(0, 8)
rarely = st.sampled_from([False, False, False, True])


@dataclass(frozen=True)
class Draw:
    """One job to be."""

    service_class: int
    run_s: float
    priority: int
    weight: float
    hold_s: float
    attached: bool
    cap: int
    kv_tokens: int
    choices: int
    prefix: str
    deadline_s: float

    def submission(self, job_id: str) -> Submission:
        return Submission(
            job_id,
            ServiceClass(self.service_class),
            "/v1/completions",
            b"{}",
            Forecast(self.kv_tokens // 2, 1, self.run_s, self.kv_tokens),
            stream=True,
            attached=self.attached,
            tenant=f"capped-{self.cap}" if self.cap else "default",
            tenant_cap=self.cap,
            choices=self.choices,
            weight=self.weight,
            prefix=self.prefix,
            priority=self.priority,
            hold_s=self.hold_s,
            deadline_s=self.deadline_s,
            listed=not self.attached,
        )


draws = st.builds(
    Draw,
    service_class=st.integers(0, 3),
    run_s=st.sampled_from([0.0, 0.5, 2.0, 60.0]),
    priority=st.sampled_from([0, 0, 0, -1, 3]),
    weight=st.sampled_from([0.0, 0.0, 1.0, 0.25]),
    hold_s=st.sampled_from([0.0, 0.0, 0.0, 100.0]),
    attached=st.booleans(),
    cap=st.sampled_from([0, 0, 1, 1, 2]),
    kv_tokens=st.sampled_from([0, 0, 100, 400]),
    choices=st.sampled_from([1, 1, 1, 2, 9]),
    prefix=st.sampled_from(PREFIXES),
    deadline_s=st.sampled_from([600.0, 86_400.0, 86_400.0, 3.0]),
)
rooms = st.builds(
    Room,
    slots=st.integers(0, 4),
    bulk_slots=st.sampled_from([None, None, 0, 1]),
    kv_tokens=st.sampled_from([None, None, 50, 450]),
    kv_total_tokens=st.just(1000),
    prefill_tokens=st.sampled_from([None, None, 60, 100]),
    prefill_total_tokens=st.just(100),
    total_slots=st.sampled_from([None, 4]),
)
