"""Which jobs an operator is shown: those that people waited for longest lately, and those that failed."""

from broker import notable
from broker.connection import Pipe
from broker.job import ServiceClass
from broker.notable import Notable
from tests.workers.leases import lease
from workers.notables import Notables
from workers.sight import Seen

QUEUE = "small"


def job(number: int) -> str:
    return f"job_{number:026}.{QUEUE}"


def seen(number: int, *, waited_s: float = 0.0, service_class: int = ServiceClass.P0) -> Seen:
    return Seen(lease(job(number), service_class, waited_s=waited_s), beside=0, started=0.0, first=0.5)


async def shown(pipe: Pipe) -> tuple[list[Notable], list[Notable]]:
    return await notable.recent(pipe, [QUEUE, "other"], most=10)


async def test_the_slowest_of_a_minute_are_kept_slowest_first_with_their_figures(pipe: Pipe) -> None:
    for worker in ("w1", "w2"):
        notables = Notables(pipe, worker_id=worker)
        for number, waited_s in enumerate((1.0, 9.0, 2.0, 7.0, 3.0)):
            notables.saw(seen(number, waited_s=waited_s + (worker == "w2")), "succeeded")
        await notables.flush()
    slow, failed = await shown(pipe)
    assert [(each.worker, each.wait_s, each.first_s) for each in slow] == [
        ("w2", 10.0, 10.5),
        ("w1", 9.0, 9.5),
        ("w2", 8.0, 8.5),
    ]
    assert (slow[0].job_id, slow[0].service_class, slow[0].outcome) == (job(1), "P0", "succeeded")
    assert slow[0].total_s >= slow[0].first_s
    assert failed == []


async def test_batch_work_is_never_slow_and_what_failed_is_shown_newest_first(pipe: Pipe) -> None:
    notables = Notables(pipe, worker_id="w1")
    notables.saw(seen(1, waited_s=5000.0, service_class=ServiceClass.P2), "succeeded")
    notables.saw(seen(2), "retry")
    for number in range(3, 3 + notable.FAILED_KEPT + 5):
        notables.saw(seen(number, service_class=ServiceClass.P3), "failed")
        await notables.flush()
    slow, failed = await notable.recent(pipe, [QUEUE], most=100)
    assert slow == []
    assert len(failed) == notable.FAILED_KEPT
    assert failed[0].job_id == job(2 + notable.FAILED_KEPT + 5)
    assert [each.ended for each in failed] == sorted((each.ended for each in failed), reverse=True)


async def test_what_is_kept_of_them_passes_away(pipe: Pipe) -> None:
    notables = Notables(pipe, worker_id="w1")
    notables.saw(seen(1), "succeeded")
    notables.saw(seen(2), "failed")
    await notables.flush()
    left_ms = [await pipe.command("PTTL", key) for key in await pipe.command("KEYS", "hw:*")]
    assert len(left_ms) == 2
    assert min(left_ms) > 0
