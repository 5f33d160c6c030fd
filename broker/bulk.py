"""Enqueueing many jobs with one script: what they share is sent once."""

from collections.abc import Sequence

from broker.job import Submission
from broker.keys import PoolKeys
from broker.policy import Order
from broker.script import Argument, Call, ms, script
from broker.scripts import stored


def alike(job: Submission) -> tuple[object, ...]:
    """What jobs must have in common to be enqueued by one `enqueue_many`."""
    kind = (job.pool, job.service_class, job.endpoint, job.stream, job.attached, job.tenant, job.tenant_cap)
    when = (job.weight, job.priority, job.deadline_s, job.hold_s, job.retain_s)
    return (*kind, *when, job.reply_to, job.listed, job.metadata)


def enqueue_many(jobs: Sequence[Submission], order: Order) -> Call:
    """Jobs that are all `alike`; some hundreds at most, for others wait meanwhile (5 us each, measured)."""
    job = jobs[0]
    k, common = PoolKeys(job.pool), stored(job)
    args: list[Argument] = [
        int(job.service_class),
        order.sjf_weight,
        ms(job.priority * order.priority_step_s),
    ]
    args += [
        job.weight,
        ms(job.deadline_s),
        ms(job.hold_s),
        order.index_cap if job.listed else 0,
        job.reply_to,
    ]
    args += [len(common), *common]
    for each in jobs:
        need = each.forecast
        age_s = order.aging.first_s(each.service_class, deadline_s=each.deadline_s, run_s=need.run_s)
        args += (each.job_id, each.body, ms(need.run_s), ms(age_s))
        args += (need.prompt_tokens, need.output_tokens, need.kv_tokens, each.prefix)
    sets = (k.named(name) for name in ("delayed", "deadlines", "aging", "index"))
    keys = (k.prefix, k.ready(job.service_class), *sets, k.fair(job.tenant), k.named("stats"))
    return Call(script("enqueue_many"), keys, tuple(args))
