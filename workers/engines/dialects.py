"""How OpenAI-compatible servers differ, as tables of facts: where they report what, and which fields they understand.

A new server is a new row of `DIALECTS`; the modules beside this one read rows and know no server by name.
Sources, per server and version: docs/engines.md.
"""

from dataclasses import dataclass

from workers.engine import CHAT, COMPLETIONS

MODELS_PATH = "/v1/models"
AUTO = "auto"
Names = tuple[str, ...]


class OwnModel:
    """A step through a JSON page: of a list of models, the one that is served (by name or id), else the first."""


OURS = OwnModel()
Steps = tuple[str | int | OwnModel, ...]


@dataclass(frozen=True, slots=True)
class Facts:
    """A JSON page (the first of `paths` that the server has) and the way through it to each fact; empty: not there.

    `times`: how many engines share the address, each of which has the slots and KV tokens that the page gives.
    """

    paths: Names
    slots: Steps = ()
    context_tokens: Steps = ()
    kv_tokens: Steps = ()
    times: Steps = ()
    by_priority: Steps = ()  # whether the scheduler looks at priorities
    lower_first: Steps = ()  # whether low values come first, where that can be set


@dataclass(frozen=True, slots=True)
class Metrics:
    """Exact families of a Prometheus page. Of several names the first that is there is read: servers rename them.

    `copies`: labels whose values tell ranks apart that report the same thing; of those one is read. All other samples of
    a family are added up; shares are averaged by the KV tokens of their `engine_label`.
    """

    path: str = "/metrics"
    running: Names = ()
    waiting: Names = ()
    kv_used_share: Names = ()
    kv_used_tokens: Names = ()
    kv_total_tokens: Names = ()
    kv_config: Names = ()  # an info family with the labels block_size and num_gpu_blocks, or kv_cache_size_tokens
    prefix_hits: Names = ()  # tokens
    prefix_queries: Names = ()  # tokens
    prefix_misses: Names = ()  # tokens, where queries are not told
    preemptions: Names = ()
    engine_label: str = ""
    copies: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Priority:
    """`sign` 1: lower first, -1: higher first. `only_if_told`: sent only where `Facts.by_priority` says yes."""

    sign: int
    only_if_told: bool = False


@dataclass(frozen=True, slots=True)
class Dialect:
    """One kind of server. What it does not have is empty or None."""

    name: str
    health_path: str = MODELS_PATH
    facts: tuple[Facts, ...] = ()
    metrics: Metrics | None = None
    slots_path: str | None = None  # llama.cpp: the tokens that each slot holds
    default_slots: int = 16
    drops: frozenset[str] = frozenset({"priority"})  # the caller's; Headway's own is in another currency
    priority: Priority | None = None
    # Words of a refusal that blames a field of Headway's, not of the caller's: it is left out from then on.
    refusals: tuple[tuple[bytes, str], ...] = ((b"stream_options", "stream_options"),)
    salts_cache: bool = False  # understands `cache_salt`
    abort_path: str | None = None  # ends a request by the `rid` it was sent with
    own_faults: frozenset[int] = frozenset()  # 4xx that are the server's fault all the same
    blames_itself_for: tuple[bytes, ...] = ()  # in the body of a 5xx that is really the caller's fault
    # llama.cpp notices that a client has left only when it cannot write to it (measured: minutes too late otherwise).
    # So it is made to write: tokens also where the caller wants the whole answer, and progress before the first token.
    streams_always: frozenset[str] = frozenset()  # endpoints
    reports_progress: bool = False


_MODEL_LENGTH = (
    Facts((MODELS_PATH,), context_tokens=("data", OURS, "max_model_len")),
    Facts((MODELS_PATH,), context_tokens=("data", 0, "max_model_len")),  # an adapter's entry gives none
)

_OPENAI = Dialect("openai", facts=_MODEL_LENGTH, default_slots=4)

_LLAMACPP = Dialect(
    "llamacpp",
    health_path="/health",
    facts=(Facts(("/props",), ("total_slots",), ("default_generation_settings", "n_ctx")),),
    metrics=Metrics(
        running=("llamacpp:requests_processing",),
        waiting=("llamacpp:requests_deferred",),
        prefix_hits=("llamacpp:prompt_tokens_cached_total",),
        prefix_misses=("llamacpp:prompt_tokens_total",),
    ),
    slots_path="/slots",
    blames_itself_for=(b"is too large to process", b"Failed to parse", b"input is not supported"),
    streams_always=frozenset({CHAT, COMPLETIONS}),
    reports_progress=True,
)

_VLLM = Dialect(
    "vllm",
    health_path="/health",
    facts=(
        *_MODEL_LENGTH,
        Facts(("/server_info?config_format=json",), ("vllm_config", "scheduler_config", "max_num_seqs")),
    ),
    metrics=Metrics(
        running=("vllm:num_requests_running",),
        waiting=("vllm:num_requests_waiting", "vllm:num_requests_waiting_by_reason"),
        kv_used_share=("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        kv_config=("vllm:cache_config_info",),
        prefix_hits=("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
        prefix_queries=("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
        preemptions=("vllm:num_preemptions_total",),
        engine_label="engine",
    ),
    default_slots=64,
    priority=Priority(1),
    refusals=(
        (b"riority scheduling is not enabled", "priority"),
        (b"stream_options", "stream_options"),
    ),
    salts_cache=True,
)

_SGLANG = Dialect(
    "sglang",
    health_path="/health",
    facts=(
        *_MODEL_LENGTH,
        Facts(
            ("/server_info", "/get_server_info"),
            slots=("internal_states", 0, "effective_max_running_requests_per_dp"),
            kv_tokens=("max_total_num_tokens",),
            times=("dp_size",),
            by_priority=("enable_priority_scheduling",),
            lower_first=("schedule_low_priority_values_first",),
        ),
        Facts(
            ("/server_info", "/get_server_info"), slots=("max_running_requests",)
        ),  # for all engines together
    ),
    metrics=Metrics(
        running=("sglang:num_running_reqs",),
        waiting=("sglang:num_queue_reqs",),
        kv_used_share=("sglang:token_usage",),
        kv_total_tokens=("sglang:max_total_num_tokens",),
        prefix_hits=("sglang:cached_tokens_total",),
        prefix_queries=("sglang:prompt_tokens_total",),
        preemptions=("sglang:num_retracted_requests_total",),
        engine_label="dp_rank",
        copies=frozenset({"tp_rank", "pp_rank", "moe_ep_rank"}),
    ),
    default_slots=64,
    priority=Priority(-1, only_if_told=True),
    refusals=(
        (b"priority is disabled for this server", "priority"),
        (b"stream_options", "stream_options"),
    ),
    salts_cache=True,
    abort_path="/abort_request",
)

_TGI = Dialect(
    "tgi",
    health_path="/health",
    facts=(Facts(("/info",), ("max_concurrent_requests",), ("max_total_tokens",)),),
    metrics=Metrics(
        running=("tgi_batch_current_size",),
        waiting=("tgi_queue_size",),
        kv_used_tokens=("tgi_batch_current_max_tokens",),
        kv_total_tokens=("tgi_batch_max_total_tokens",),
    ),
    own_faults=frozenset({424}),
)

_OLLAMA = Dialect(
    "ollama",
    facts=(Facts(("/api/ps",), context_tokens=("models", OURS, "context_length")),),
    default_slots=1,
)

DIALECTS = {row.name: row for row in (_OPENAI, _LLAMACPP, _VLLM, _SGLANG, _TGI, _OLLAMA)}
