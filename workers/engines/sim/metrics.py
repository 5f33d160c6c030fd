"""`/metrics` as vLLM's v1 engine has it: the same families, types and labels, read from the replica when asked.

Source: vLLM's `vllm/v1/metrics/loggers.py` and docs/design/metrics.md. Families that the simulation has nothing to say on
(queue and prefill time, LoRA, multi-modal, speculative decoding) are absent. One is its own: how long it was busy.
"""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from workers.engines.sim.realtime import Runner
from workers.engines.sim.replica import StepResult

LABELS = ("model_name", "engine")
ENGINE = "0"
FIRST_TOKEN_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
REQUEST_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384)
REQUEST_TOKENS = tuple(m * 10**e for e in range(6) for m in (1, 2, 5))


class ReplicaState(Collector):
    """Gauges and counters of the replica as it is now."""

    def __init__(self, runner: Runner, model: str) -> None:
        self._runner = runner
        self._replica = runner.replica
        self._model = model

    def collect(self) -> Iterator[Metric]:
        replica, totals = self._replica, self._replica.totals
        yield self._gauge("num_requests_running", replica.running, text="Requests in the batch.")
        yield self._gauge("num_requests_waiting", replica.waiting, text="Requests that wait.")
        reasons = GaugeMetricFamily(
            "vllm:num_requests_waiting_by_reason", "Waiting requests by reason.", labels=(*LABELS, "reason")
        )
        reasons.add_metric((self._model, ENGINE, "capacity"), replica.waiting)
        reasons.add_metric((self._model, ENGINE, "deferred"), 0)
        yield reasons
        yield self._gauge("kv_cache_usage_perc", replica.kv_used_share, text="KV cache usage; 1 is all.")
        for name, text, value in (
            ("prefix_cache_queries", "Tokens looked up in the prefix cache.", totals.cache_queries),
            ("prefix_cache_hits", "Tokens found in the prefix cache.", totals.cache_hits),
            ("num_preemptions", "Preemptions by the engine.", totals.preemptions),
            ("prompt_tokens", "Prefill tokens processed.", totals.prompt_tokens),
            ("prompt_tokens_cached", "Prompt tokens that were cached.", totals.cache_hits),
            ("generation_tokens", "Generation tokens processed.", totals.generation_tokens),
        ):
            family = CounterMetricFamily(f"vllm:{name}", text, labels=LABELS)
            family.add_metric((self._model, ENGINE), value)
            yield family
        yield CounterMetricFamily(
            "headway_sim_busy_seconds", "Time with anything to do.", value=self._runner.busy_s
        )
        yield self._config()

    def _gauge(self, name: str, value: float, *, text: str) -> Metric:
        family = GaugeMetricFamily(f"vllm:{name}", text, labels=LABELS)
        family.add_metric((self._model, ENGINE), value)
        return family

    def _config(self) -> Metric:
        """It has no model's name, as in vLLM."""
        limits = self._replica.limits
        facts = {
            "block_size": str(limits.block_tokens),
            "cache_dtype": "auto",
            "enable_prefix_caching": str(limits.prefix_caching),
            "engine": ENGINE,
            "num_gpu_blocks": str(limits.blocks),
        }
        family = GaugeMetricFamily(
            "vllm:cache_config_info", "The cache's configuration.", labels=tuple(facts)
        )
        family.add_metric(tuple(facts.values()), 1)
        return family


class Metrics:
    """`model`: the name that is served. Times are what a client sees: those of the wall, whatever the speed."""

    def __init__(self, runner: Runner, model: str) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(ReplicaState(runner, model))
        self._names = (model, ENGINE)
        self.first_token = self._histogram("time_to_first_token_seconds", FIRST_TOKEN_S)
        self.between_tokens = self._histogram("inter_token_latency_seconds", TOKEN_S)
        self.per_token = self._histogram("request_time_per_output_token_seconds", TOKEN_S)
        self.whole = self._histogram("e2e_request_latency_seconds", REQUEST_S)
        self.prompt_tokens = self._histogram("request_prompt_tokens", REQUEST_TOKENS)
        self.generation_tokens = self._histogram("request_generation_tokens", REQUEST_TOKENS)
        self._step_tokens = self._histogram("iteration_tokens_total", STEP_TOKENS)
        self._success = Counter(
            "vllm:request_success",
            "Finished requests.",
            (*LABELS, "finished_reason"),
            registry=self._registry,
        )
        for reason in ("stop", "length", "abort"):
            self._success.labels(*self._names, reason)

    def step(self, result: StepResult) -> None:
        self._step_tokens.observe(result.prefill_tokens + result.decode_sequences)

    def ended(self, reason: str) -> None:
        """`reason`: stop, length or abort."""
        self._success.labels(*self._names, reason).inc()

    def page(self) -> bytes:
        return generate_latest(self._registry)

    def _histogram(self, name: str, buckets: tuple[float, ...]) -> Histogram:
        text = name.replace("_", " ")
        family = Histogram(f"vllm:{name}", text, LABELS, buckets=buckets, registry=self._registry)
        return family.labels(*self._names)
