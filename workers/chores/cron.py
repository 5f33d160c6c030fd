"""When which chore runs. Loaded by `main.py`; `rq cron workers.chores.cron -u URL` reads it as well."""

from functools import partial

from rq import Queue, cron
from rq.serializers import JSONSerializer

from workers.chores import jobs

QUEUE = "chores"
# rq 3.0's scheduler has no serializer of its own (`rq cron --serializer` is taken and ignored), so it would write pickle
cron.Queue = partial(Queue, serializer=JSONSerializer)  # type: ignore[attr-defined,assignment]

# `ttl`: while no worker runs, runs that were missed do not pile up
cron.register(
    jobs.sweep_batches,
    QUEUE,
    interval=10,
    ttl=20,
    job_timeout=60,
    result_ttl=0,
    failure_ttl=86_400,
    name="sweep",
)
cron.register(
    jobs.expire_files,
    QUEUE,
    interval=600,
    ttl=600,
    job_timeout=300,
    result_ttl=0,
    failure_ttl=86_400,
    name="files",
)
cron.register(
    jobs.expire_batches,
    QUEUE,
    interval=600,
    ttl=600,
    job_timeout=300,
    result_ttl=0,
    failure_ttl=86_400,
    name="batches",
)
cron.register(
    jobs.forget_pools,
    QUEUE,
    interval=600,
    ttl=600,
    job_timeout=60,
    result_ttl=0,
    failure_ttl=86_400,
    name="pools",
)
