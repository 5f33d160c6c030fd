"""Which engines `headway doctor` names."""

import pytest

from api.cli.doctor_pools import ready
from broker.fleet import PoolView, WorkerRecord


def view(*engines: str) -> PoolView:
    workers = [
        WorkerRecord(f"w{n}", "small", engine, "m", 4, 0, "ready", 1, "here")
        for n, engine in enumerate(engines)
    ]
    return PoolView("small", workers, [0] * 4, 0, 0, 0)


@pytest.mark.parametrize(
    ("engines", "text"),
    [
        (["vllm at http://a"], "1 ready workers (vllm at http://a), 4 slots"),
        (["llamacpp", "llamacpp"], "2 ready workers (llamacpp), 8 slots"),
        (["a", "b", "c", "d"], "4 ready workers (a, b, c …), 16 slots"),
    ],
)
def test_a_ready_pool_tells_what_its_engines_were_found_to_be(engines: list[str], text: str) -> None:
    assert ready(view(*engines)).text.startswith(text)
