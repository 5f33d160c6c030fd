"""All metrics. docs/metrics.md is written from this file (`make docs`); dashboards and rules may name nothing else.

Labels are bounded: pools, routes and reasons by the configuration, workers and processes by how many live (MOST_WORKERS a pool),
tenants to the MOST_TENANTS that used most.
"""

from api.metrics.family import Family, counter, gauge, histogram

MOST_WORKERS = 200
MOST_TENANTS = 20
OTHER = "other"  # all further tenants, or paths

QUEUE_JOBS = gauge(
    "headway_queue_jobs", "Jobs that wait: ready, promoted, put off, held or capped", "pool", "class"
)
QUEUE_SECONDS = gauge(
    "headway_queue_predicted_seconds", "Their predicted seconds of running", "pool", "class"
)
QUEUE_OLDEST = gauge(
    "headway_queue_oldest_age_seconds",
    "How long the oldest has waited of the jobs that are next: 16 of the class and 16 promoted ones of each level",
    "pool",
    "class",
)
PROMOTED_JOBS = gauge(
    "headway_promoted_jobs", "Of the jobs that wait, those above their class's level", "pool"
)
DELAYED_JOBS = gauge("headway_delayed_jobs", "Of the jobs that wait, retries and unfed batch work", "pool")
RUNNING_JOBS = gauge("headway_running_jobs", "Jobs leased to workers", "pool")
DEAD_JOBS = gauge("headway_dead_jobs", "Dead letters that are kept", "pool")

ACCEPTED = counter("headway_jobs_accepted_total", "Jobs accepted", "pool", "class")
ENDED = counter(
    "headway_jobs_total",
    "Jobs that ended; `escalated`: first passes whose place another job has taken",
    "pool",
    "class",
    "status",
)
CLAIMS = counter("headway_claims_total", "Leases given", "pool", "class")
PREFIX_CLAIMS = counter(
    "headway_prefix_claims_total",
    "Claims of jobs that share a prefix; `local`: by the worker that has it warm, `stolen`: by another one, `missed`: nobody had it",
    "pool",
    "class",
    "where",
)
SHARD_STEALS = counter("headway_shard_steals_total", "Claims by a worker whose home is another shard", "pool")
PROMOTIONS = counter("headway_promotions_total", "Steps up a level, by age or deadline", "pool", "class")
PREEMPTIONS = counter(
    "headway_preemptions_total", "Jobs stopped for a P0 job, or for room in the KV cache", "pool"
)
RETRIES = counter("headway_retries_total", "Leases given back by their workers", "pool", "reason")
EXPIRED_LEASES = counter(
    "headway_leases_expired_total", "Leases that ran out: their workers died or hung", "pool"
)
DEAD_LETTERS = counter("headway_dead_letters_total", "Jobs given up after too many failures", "pool", "class")
MENDED = counter("headway_reconciled_total", "Broken indexes that the reaper mended", "pool", "what")
RESCUED = counter("headway_rescued_jobs_total", "Jobs handed on as nobody served the pool", "pool")
HANDED_ON = counter(
    "headway_escalations_total",
    "First passes handed on to another pool; `pool`: the one they came from, `low_confidence`: by a cascade",
    "pool",
    "reason",
)
VERDICTS = counter(
    "headway_cascade_verdicts_total", "First passes judged by their confidence", "pool", "verdict"
)
ROUTED = counter(
    "headway_router_decisions_total",
    "Pools that routes chose, by the kind of prompt and by why (threshold, load, sticky, degraded)",
    "route",
    "pool",
    "kind",
    "why",
)

WAIT = histogram("headway_wait_seconds", "From accepted to claimed, of first attempts", "pool", "class")
TTFT = histogram("headway_ttft_seconds", "From accepted to the first token", "pool", "class")
TPOT = histogram("headway_tpot_seconds", "For each token of an answer after its first", "pool", "class")
E2E = histogram("headway_e2e_seconds", "From accepted to the end of the answer", "pool", "class")
READING = histogram(
    "headway_engine_read_seconds",
    "An engine's time to the first token for 1,000 prompt tokens that it had not cached, of long prompts",
    "pool",
)

TOKENS = counter(
    "headway_tokens_total", "Tokens as engines counted them (kind: prompt, output, cached)", "pool", "kind"
)
PREFIX_SAVED = counter(
    "headway_prefix_tokens_saved_total", "Prompt tokens that engines had in their caches", "pool"
)
TENANT_REQUESTS = counter("headway_tenant_requests_total", "Jobs that were begun", "pool", "class", "tenant")
TENANT_TOKENS = counter(
    "headway_tenant_tokens_total", "Tokens by whom they were for", "pool", "class", "tenant", "kind"
)
GPU_SECONDS = counter("headway_gpu_seconds_total", "GPU time used", "pool", "class", "tenant")
COST = counter(
    "headway_cost_usd_total", "What that cost, where the pool has a price", "pool", "class", "tenant"
)

FORECAST_ERROR = gauge(
    "headway_forecast_error_ratio",
    "How far forecasts are off, as a factor: 1 is right, 2 is twice or half (moving geometric mean)",
    "pool",
    "of",
)
FORECAST_OUTCOMES = counter(
    "headway_forecast_outcomes_total", "Finished jobs that timing was learned from", "pool"
)

WORKERS = gauge("headway_workers", "Workers by state", "pool", "state")
SLOTS = gauge("headway_slots", "Slots of ready workers", "pool")
BUSY_SLOTS = gauge("headway_busy_slots", "Busy slots of ready workers", "pool")
WORKER_SLOTS = gauge(
    "headway_worker_slots", "Answers at once that the engine is trusted with", "pool", "worker"
)
WORKER_BUSY = gauge("headway_worker_busy_slots", "Of those, busy", "pool", "worker")
WORKER_KV = gauge("headway_worker_kv_used_ratio", "Of its KV cache, 0 to 1", "pool", "worker")
WORKER_SECONDS = gauge(
    "headway_worker_predicted_seconds", "Predicted seconds of the jobs that it holds", "pool", "worker"
)
WORKER_TPOT = gauge("headway_worker_tpot_seconds", "For each token after the first, lately", "pool", "worker")
WORKER_BREAKER = gauge(
    "headway_worker_breaker_state", "0 closed, 1 half-open, 2 open: it gets no jobs", "pool", "worker"
)
BREAKER_EVENTS = counter("headway_breaker_events_total", "What workers' breakers did", "pool", "event")

MAX_OVER_MEAN = gauge(
    "headway_balance_max_over_mean",
    "Of the workers' means over the last minute (of: busy, kv, predicted): 1 is even",
    "pool",
    "of",
)
VARIATION = gauge(
    "headway_balance_variation", "Coefficient of variation of the same: 0 is even", "pool", "of"
)
JAIN = gauge(
    "headway_balance_jain", "Jain's index of the same: 1 is even, 1/n is one worker alone", "pool", "of"
)
UNEVEN = gauge(
    "headway_balance_uneven", "1 while a worker stands out, as it was in the last ten seconds", "pool"
)
CAUSE = gauge(
    "headway_balance_cause",
    "1 for each worker that is named (reason: slow, long_jobs, busy, kv), or gets no jobs (its state, breaker)",
    "pool",
    "worker",
    "reason",
)

REFUSALS = counter(
    "headway_refusals_total",
    "Requests refused with 429 or 503 (reason: the error's code). `rate_limit_exceeded`: a limit; the others shed load",
    "pool",
    "class",
    "reason",
)
HTTP_REQUESTS = counter(
    "headway_http_requests_total", "Answers, without health checks and scrapes", "path", "code"
)
REDIS_SECONDS = histogram(
    "headway_redis_round_trip_seconds",
    "Of a PING by an API process, each second",
    bounds=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0),
)
LOOP_LAG = histogram(
    "headway_event_loop_lag_seconds",
    "How much later than asked an API process's event loop went on, four times a second",
    bounds=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0),
)
API_LAG = gauge("headway_api_loop_lag_seconds", "The worst of the last seconds", "process")
API_REQUESTS = gauge("headway_api_open_requests", "Requests that are being answered", "process")
API_MEMORY = gauge("headway_api_resident_memory_bytes", "Memory of an API process", "process")
API_CPU = counter("headway_api_cpu_seconds_total", "CPU time of an API process", "process")

SECTIONS: dict[str, tuple[Family, ...]] = {
    "The queue": (
        QUEUE_JOBS,
        QUEUE_SECONDS,
        QUEUE_OLDEST,
        PROMOTED_JOBS,
        DELAYED_JOBS,
        RUNNING_JOBS,
        DEAD_JOBS,
    ),
    "What became of jobs": (
        *(ACCEPTED, ENDED, CLAIMS, PREFIX_CLAIMS, SHARD_STEALS, PROMOTIONS, PREEMPTIONS, RETRIES),
        *(EXPIRED_LEASES, DEAD_LETTERS, RESCUED, MENDED),
    ),
    "Times": (WAIT, TTFT, TPOT, E2E, READING),
    "Tokens, GPU time and money": (TOKENS, PREFIX_SAVED, TENANT_REQUESTS, TENANT_TOKENS, GPU_SECONDS, COST),
    "Routing": (ROUTED, HANDED_ON, VERDICTS),
    "Forecasts": (FORECAST_ERROR, FORECAST_OUTCOMES),
    "Workers": (
        *(WORKERS, SLOTS, BUSY_SLOTS, WORKER_SLOTS, WORKER_BUSY, WORKER_KV, WORKER_SECONDS, WORKER_TPOT),
        *(WORKER_BREAKER, BREAKER_EVENTS),
    ),
    "Balance": (MAX_OVER_MEAN, VARIATION, JAIN, UNEVEN, CAUSE),
    "The door and its processes": (
        *(REFUSALS, HTTP_REQUESTS, REDIS_SECONDS, LOOP_LAG, API_LAG, API_REQUESTS, API_MEMORY, API_CPU),
    ),
}
ALL = tuple(family for families in SECTIONS.values() for family in families)
TALLIED = {family.name: family for family in (ROUTED, REFUSALS, HTTP_REQUESTS, REDIS_SECONDS, LOOP_LAG)}
