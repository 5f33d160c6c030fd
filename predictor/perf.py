"""How long one step of a GPU replica's engine takes, from the batch it runs. Pure, and cheap enough to simulate with.

A step is the sum of what one forward pass launches: matrix products, attention, all-reduces and element-wise kernels. The
constants in `perf_constants.json` were fitted on measured kernels by `benchmarks/perf_fit.py`; docs/perf_model.md has
the formulas, the sources and the errors against measured engines.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any, Protocol

import orjson

from broker.errors import ConfigError

GPU_MEMORY_SHARE = 0.9  # vLLM's default `gpu_memory_utilization`
NOT_FOR_KV_BYTES = 3.5 * 2**30  # activations, CUDA graphs and communication buffers, on each GPU
SMALLEST_KV_TOKENS = 16_384  # a replica that could not hold this is not offered
EXACT_UP_TO = 512  # tokens in a step; above it curves are interpolated between multiples of GRID_TOKENS
GRID_TOKENS = 128
LAST_TOKENS = 32_768  # above it curves are continued as a straight line
HEAD_DIM = 128  # of every model here
PARALLEL = (1, 2, 4, 8)


class StepTimes(Protocol):
    """A replica's speed. Must be cheap: a simulation asks millions of times."""

    def step_s(
        self, *, prefill_tokens: int, prefill_context: int, decode_sequences: int, kv_tokens: int
    ) -> float:
        """Seconds of one engine step.

        `prefill_tokens`: of all prompt chunks in the step. `prefill_context`: tokens that one of them attends to, on
        average (`mean_context`). `decode_sequences`: sequences that get their next token. `kv_tokens`: tokens that
        these have in the KV cache, summed.
        """
        ...


def mean_context(chunks: Iterable[tuple[int, int]]) -> int:
    """`prefill_context` of a step. `chunks`: (tokens already in the cache, tokens of this chunk) of each prompt in it.

    A token attends to what is in the cache and to its own chunk up to itself: half the chunk on average.
    """
    tokens = pairs = 0.0
    for cached, chunk in chunks:
        tokens += chunk
        pairs += chunk * (cached + chunk / 2)
    return round(pairs / tokens) if tokens else 0


@dataclass(frozen=True, slots=True)
class Model:
    """A dense decoder with grouped-query attention and a gated MLP."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    vocabulary: int

    def parameters(self) -> int:
        """Norms left out: under 0.01 %."""
        attention = self.hidden * HEAD_DIM * (2 * self.heads + 2 * self.kv_heads)
        layer = attention + 3 * self.hidden * self.intermediate
        return self.layers * layer + 2 * self.vocabulary * self.hidden

    def products(self, tp: int) -> list[tuple[int, int]]:
        """(n, k) of a layer's matrix products on one of `tp` GPUs: QKV, output, gate and up, down."""
        q, kv, mlp = self.heads * HEAD_DIM // tp, self.kv_heads * HEAD_DIM // tp, self.intermediate // tp
        h = self.hidden
        return [(q + 2 * kv, h), (h, q), (2 * mlp, h), (h, mlp)]

    def elementwise_bytes(self, tp: int) -> float:
        """Bytes that the element-wise kernels of a layer move for each token: two norms with residual, rotary, SiLU."""
        rotary = 2 * (self.heads + self.kv_heads) * HEAD_DIM / tp
        return 2 * (2 * 4 * self.hidden + rotary + 3 * self.intermediate / tp)


ELEMENTWISE_KERNELS = 5  # of a layer: two norms, rotary, KV write, SiLU
MODELS = {
    "llama-3.1-8b": Model(32, 4096, 14_336, 32, 8, 128_256),
    "llama-3.1-70b": Model(80, 8192, 28_672, 64, 8, 128_256),
    "llama-2-70b": Model(80, 8192, 28_672, 64, 8, 32_000),
}
WEIGHT_BYTES = {"bf16": 2, "fp8": 1}


def gemm_s(constants: dict[str, float], weight_bytes: int, *, m: float, n: float, k: float) -> float:
    """A product of (m, k) with weights (k, n): the larger of compute and weight traffic, rounded off where they meet,
    plus what is spent on the activations (with fp8: their quantisation too)."""
    compute = 2 * m * n * k / constants["flops_per_s"]
    weights = n * k * weight_bytes / constants["bytes_per_s"]
    sharp = constants["sharpness"]
    both = float((compute**sharp + weights**sharp) ** (1 / sharp))
    return constants["fixed_s"] + both + m * k * constants["activation_s"]


def all_reduce_s(constants: dict[str, float], message_bytes: float) -> float:
    """Large messages go at a better rate than small ones: the power is just below 1."""
    return float(constants["fixed_s"] + (message_bytes * constants["byte_s"]) ** constants["power"])


class Curve:
    """A function of a token count, tabulated once: a list look-up for small counts, a straight line between points."""

    __slots__ = ("_coarse", "_exact", "_last", "_slope")

    def __init__(self, function: Callable[[float], float]) -> None:
        self._exact = [0.0, *(function(n) for n in range(1, EXACT_UP_TO + 1))]
        # One multiple of the grid further than needed, so that the last interval has an end.
        self._coarse = [function(max(n, 1)) for n in range(0, LAST_TOKENS + 2 * GRID_TOKENS, GRID_TOKENS)]
        self._last = self._coarse[LAST_TOKENS // GRID_TOKENS]
        self._slope = (self._last - self._coarse[LAST_TOKENS // GRID_TOKENS // 2]) / (LAST_TOKENS / 2)

    def __call__(self, tokens: int) -> float:
        if tokens <= EXACT_UP_TO:
            return self._exact[tokens]
        if tokens >= LAST_TOKENS:
            return self._last + (tokens - LAST_TOKENS) * self._slope
        at, rest = divmod(tokens, GRID_TOKENS)
        low = self._coarse[at]
        return low + (self._coarse[at + 1] - low) * rest / GRID_TOKENS


@dataclass(frozen=True, slots=True)
class Replica:
    """`gpus`: the degree of tensor parallelism. `weights`, `kv`: "bf16" or "fp8"."""

    model: Model
    gpu: str
    gpus: int = 1
    weights: str = "bf16"
    kv: str = "bf16"

    @property
    def kv_bytes_per_token(self) -> int:
        """On all GPUs together."""
        return 2 * self.model.layers * self.model.kv_heads * HEAD_DIM * WEIGHT_BYTES[self.kv]

    def kv_capacity_tokens(self, memory_share: float = GPU_MEMORY_SHARE) -> int:
        """What the weights and the engine's own buffers leave; embeddings and the output layer stay in bf16."""
        model = self.model
        ends = 2 * model.vocabulary * model.hidden
        weights = (model.parameters() - ends) * WEIGHT_BYTES[self.weights] + ends * 2
        memory = constants()["gpus"][self.gpu]["memory_bytes"]
        free = self.gpus * (memory * memory_share - NOT_FOR_KV_BYTES) - weights
        return max(0, int(free / self.kv_bytes_per_token))


@dataclass(slots=True)
class FittedStepTimes:
    """`StepTimes` of a replica whose engine hides its own work behind the GPU's, as vLLM does with CUDA graphs and
    asynchronous scheduling. `host_s`, `host_sequence_s`: what another engine adds per step and per decoding sequence.
    """

    replica: Replica
    host_s: float = 0.0
    host_sequence_s: float = 0.0
    _forward: Curve = field(init=False)
    _head: Curve = field(init=False)
    _prefill: tuple[float, float, float] = field(init=False)
    _decode: tuple[float, float, float] = field(init=False)

    def __post_init__(self) -> None:
        replica, model, tp = self.replica, self.replica.model, self.replica.gpus
        gpu = constants()["gpus"][replica.gpu]
        gemm, width = gpu["gemm"][replica.weights], WEIGHT_BYTES[replica.weights]
        reduce = gpu["all_reduce"].get(str(tp))
        light, moved = gpu["elementwise"], model.elementwise_bytes(tp)

        def forward(m: float) -> float:
            products = sum(gemm_s(gemm, width, m=m, n=n, k=k) for n, k in model.products(tp))
            reduced = 2 * all_reduce_s(reduce, m * model.hidden * 2) if reduce else 0.0
            elementwise = ELEMENTWISE_KERNELS * light["fixed_s"] + m * moved * light["byte_s"]
            return float(model.layers * (products + reduced + elementwise))

        def head(m: float) -> float:
            return gemm_s(gpu["gemm"]["bf16"], 2, m=m, n=model.vocabulary / tp, k=model.hidden)

        self._forward, self._head = Curve(forward), Curve(head)
        heads, kv_heads, layers = model.heads / tp, model.kv_heads / tp, model.layers
        context, generation = gpu["prefill_attention"][replica.kv], gpu["decode_attention"][replica.kv]
        pair_s = layers * heads * HEAD_DIM * 4 / context["flops_per_s"]
        token_s = layers * (heads + kv_heads) * HEAD_DIM * 4 * context["byte_s"]
        self._prefill = (layers * context["fixed_s"], token_s, pair_s)
        kv_s = self.replica.kv_bytes_per_token / tp * generation["byte_s"]
        row_s = layers * kv_heads * generation["row_s"] + self.host_sequence_s
        self._decode = (layers * generation["fixed_s"], row_s, kv_s)

    def step_s(
        self, *, prefill_tokens: int, prefill_context: int, decode_sequences: int, kv_tokens: int
    ) -> float:
        seconds = self.host_s + self._forward(prefill_tokens + decode_sequences)
        sampled = decode_sequences
        if prefill_tokens:
            sampled += 1  # a chunk may end its prompt; how many do is not known here, and a row costs next to nothing
            fixed, token_s, pair_s = self._prefill
            seconds += fixed + prefill_tokens * (token_s + prefill_context * pair_s)
        if decode_sequences:
            fixed, row_s, kv_s = self._decode
            seconds += fixed + decode_sequences * row_s + kv_tokens * kv_s
        return seconds + self._head(sampled)


@cache
def constants() -> dict[str, Any]:
    """Of `perf_constants.json`. Units are in the names; rates are what a kernel reaches, not the data sheet's."""
    found: dict[str, Any] = orjson.loads(files("predictor").joinpath("perf_constants.json").read_bytes())
    return found


@cache
def _replicas() -> dict[str, Replica]:
    gpus = constants()["gpus"]
    wanted = [(gpu, name, weights) for gpu in gpus for name in MODELS for weights in gpus[gpu]["gemm"]]
    found = {
        f"{name}-{weights}@{n}x{gpu}": Replica(MODELS[name], gpu, n, weights)
        for gpu, name, weights in wanted
        for n in PARALLEL
    }
    return {name: it for name, it in found.items() if it.kv_capacity_tokens() >= SMALLEST_KV_TOKENS}


def known() -> tuple[str, ...]:
    """Names that `load` takes: "<model>-<weights>@<GPUs>x<GPU>", such as "llama-3.1-70b-fp8@2xh100"."""
    return tuple(_replicas())


def load(name: str, *, kv: str = "bf16") -> FittedStepTimes:
    """`kv`: the KV cache's number format, "bf16" or (on H100 and H200) "fp8".

    Raises `ConfigError` for a name that is not `known`, or a format that was not measured on its GPU.
    """
    replica = _replicas().get(name)
    if replica is None:
        raise ConfigError(f"no GPU replica {name!r}; known are: {', '.join(known())}")
    measured = constants()["gpus"][replica.gpu]["decode_attention"]
    if kv not in measured:
        raise ConfigError(
            f"KV cache in {kv!r} was not measured on {replica.gpu}; take one of {', '.join(measured)}"
        )
    return FittedStepTimes(replace(replica, kv=kv))
