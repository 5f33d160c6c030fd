"""When which chore runs. Loaded by `main.py`; `rq cron workers.chores.cron -u URL` reads it as well."""

from functools import partial

from rq import Queue, cron
from rq.serializers import JSONSerializer

from workers.chores import jobs

QUEUE = "chores"
SLOW_QUEUE = "slow-chores"  # for these no callback waits
# rq 3.0's scheduler has no serializer of its own (`rq cron --serializer` is taken and ignored), so it would write pickle
cron.Queue = partial(Queue, serializer=JSONSerializer)  # type: ignore[attr-defined,assignment]

register = partial(cron.register, queue_name=QUEUE, result_ttl=0, failure_ttl=86_400)

# `ttl`: while no worker runs, runs that were missed do not pile up
register(jobs.sweep_batches, interval=10, ttl=20, job_timeout=60, name="sweep")
register(jobs.call_back, interval=5, ttl=10, job_timeout=60, name="callbacks")
register(jobs.expire_files, interval=600, ttl=600, job_timeout=300, name="files")
register(jobs.expire_batches, interval=600, ttl=600, job_timeout=300, name="batches")
# retraining looks whether it is time
register(jobs.retrain, interval=300, ttl=300, job_timeout=1800, name="retrain", queue_name=SLOW_QUEUE)
register(jobs.learn_floors, interval=300, ttl=300, job_timeout=60, name="floors")
register(jobs.forget_pools, interval=600, ttl=600, job_timeout=60, name="pools")
