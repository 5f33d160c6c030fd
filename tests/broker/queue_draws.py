"""What the state machine draws: jobs of every kind, which one to act on, how it ends."""

from dataclasses import dataclass

from hypothesis import strategies as st

from broker.job import Forecast, ServiceClass, Submission
from broker.scripts import Ending
from tests.broker.jobs import ERROR

FAR_S = 1000.0  # longer than any test takes: what it stands for comes about by back-dating


@dataclass(frozen=True)
class Spec:
    """What a rule draws for one job."""

    service_class: int
    cost_s: float
    priority: int
    weight: float
    held: bool
    attached: bool
    listed: bool

    def submission(self, job_id: str) -> Submission:
        return Submission(
            job_id,
            ServiceClass(self.service_class),
            "/v1/completions",
            b"{}",
            Forecast(1, 1, self.cost_s),
            attached=self.attached,
            weight=self.weight,
            priority=self.priority,
            hold_s=FAR_S if self.held else 0.0,
            listed=self.listed,
        )


specs = st.builds(
    Spec,
    service_class=st.integers(0, 3),
    cost_s=st.sampled_from([0.0, 0.5, 2.0, 2.0, 60.0]),
    priority=st.sampled_from([0, 0, 0, -1, 3]),
    weight=st.sampled_from([0.0, 0.0, 1.0, 0.25]),
    held=st.booleans(),
    attached=st.booleans(),
    listed=st.booleans(),
)
picks = st.integers(0, 20)
ENDINGS = {
    succeeded: Ending(succeeded, b'{"answer":1}' if succeeded else ERROR, 3, 5, 1)
    for succeeded in (True, False)
}
