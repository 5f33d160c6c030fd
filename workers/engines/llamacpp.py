"""llama.cpp inside the worker process, by default with SmolLM2-135M-Instruct: real text from any CPU.

The server of the `xllamacpp` wheel runs in threads of its own and is spoken to over loopback HTTP like any other.
Invariant: the KV cache holds `slots` requests of full length. llama.cpp fails *every* running request when a unified
cache runs over (measured: eight answers of status 500), so it must not be able to.
"""

import asyncio
import dataclasses
import os
import secrets
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from broker.errors import ConfigError
from workers.engine import Delta, EngineCall, EngineLimits, EngineLoad, EngineUnavailable, Final
from workers.engines import smollm2
from workers.engines.exchange import HttpOptions
from workers.engines.forced_call import call_tool, forced
from workers.engines.openai_http import Named, OpenAIEngine

SLOTS = 8
MAX_SLOTS = 256  # llama.cpp's LLAMA_MAX_SEQ
CONTEXT_TOKENS = 4096
# Tokens in one step. A prompt is computed in such pieces; between two of them the others get their next token, and a
# client that left is noticed (measured on one thread, in the middle of a prompt: slot free after 0.7 to 1.3 s, with
# 256 tokens a step 1.7 to 2.5 s, at the same speed). It also bounds one input of /v1/embeddings.
STEP_TOKENS = 128
PREFIX_CACHE_MIB = 256
SILENT = -1  # no line at all: what llama.cpp logs is not ours to vouch for, and prompts are never logged


class LlamaCppEngine:
    """`gguf` None: the embedded model. `context_tokens` bounds one request. `threads` None: half of the cores.

    Half, because the threads wait for each other by spinning. Measured on two cores, 8 clients: one thread 140 tokens/s
    and two 250 on a quiet machine, but 60 to 97 against 6 to 67 beside other busy processes; two engines side by side
    made 236 with one thread each and 204 with two.

    Memory: 23 KB a context token of every slot for SmolLM2-135M (0.75 GB by default) on top of the weights.
    """

    def __init__(
        self,
        gguf: Path | None = None,
        *,
        slots: int = SLOTS,
        context_tokens: int = CONTEXT_TOKENS,
        threads: int | None = None,
        options: HttpOptions | None = None,
    ) -> None:
        if not 1 <= slots <= MAX_SLOTS:
            raise ConfigError(f"slots={slots}: the embedded engine has 1 to {MAX_SLOTS}")
        self._gguf = gguf
        self._slots = slots
        self._context_tokens = context_tokens
        self._threads = threads or max(1, _cores() // 2)
        self._options = options or HttpOptions()
        self._server: Any = None
        self._key = ""
        self._client: OpenAIEngine | None = None
        self.name = "llamacpp"
        self.pid: int | None = os.getpid()

    async def start(self) -> None:
        """Loads the model (0.6 s for the embedded one); the wheel holds the GIL for all of it, threads or not."""
        await self.close()
        key = self._key = secrets.token_urlsafe(24)
        server = await asyncio.to_thread(self._load, key)
        self._server = server
        self._client = OpenAIEngine(
            server.listening_address,
            dialect="llamacpp",
            named=Named(slots=self._slots, kv_tokens=self._slots * self._context_tokens),
            options=dataclasses.replace(self._options, api_key=key),
        )
        await self._client.start()

    def generate(self, call: EngineCall) -> AsyncGenerator[Delta | Final, None]:
        functions = forced(call)
        if functions is not None:
            return call_tool(self._started(), call, functions=functions)
        return self._started().generate(call)

    async def abort(self, job_id: str) -> None:
        if self._client is not None:
            await self._client.abort(job_id)

    async def load(self) -> EngineLoad:
        return await self._started().load()

    async def health(self) -> bool:
        return self._client is not None and await self._client.health()

    async def limits(self) -> EngineLimits:
        return await self._started().limits()

    async def close(self) -> None:
        """The connections first: the server waits for its requests, with the GIL held."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()
        if self._server is not None:
            await asyncio.to_thread(self._unload)

    @property
    def address(self) -> tuple[str, str]:
        """URL and key of the server, for whoever wants to talk to it past Headway, such as a benchmark."""
        self._started()
        return self._server.listening_address, self._key

    def _started(self) -> OpenAIEngine:
        if self._client is None:
            raise EngineUnavailable("llama.cpp is not started")
        return self._client

    def _load(self, key: str) -> Any:
        try:
            import xllamacpp  # noqa: PLC0415 - 100 MB of code that only this engine's worker needs
        except ImportError as error:
            raise EngineUnavailable(
                f"llama.cpp is not installed ({error}): `pip install xllamacpp`"
            ) from error
        path = self._gguf or smollm2.weights()
        if not path.is_file():
            raise EngineUnavailable(f"there is no model file {path}")
        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.model_alias = {smollm2.MODEL if self._gguf is None else path.stem}
        if self._gguf is None:
            params.chat_template = smollm2.CHAT_TEMPLATE
        self._size(params)
        params.api_keys = [key]
        params.verbosity = SILENT
        params.ui = False
        params.endpoint_metrics = params.endpoint_slots = True
        params.embedding = True  # serves chats all the same, as fast
        params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
        try:
            return xllamacpp.Server(params)  # a free port, on 127.0.0.1
        except RuntimeError as error:
            raise EngineUnavailable(f"llama.cpp cannot load {path}: {error}") from error

    def _size(self, params: Any) -> None:
        params.n_parallel = self._slots
        params.kv_unified = True
        params.kv_unified_per_slot = self._context_tokens
        params.n_ctx = self._slots * self._context_tokens
        # In embedding mode llama.cpp aborts the process if a step does not divide into the slots.
        params.n_batch = params.n_ubatch = self._slots * max(1, STEP_TOKENS // self._slots)
        params.cache_ram_mib = PREFIX_CACHE_MIB
        # A connection occupies a thread until it is closed, also between requests.
        params.n_threads_http = 2 * self._slots + 8
        for cpu in (params.cpuparams, params.cpuparams_batch):
            cpu.n_threads = self._threads
            cpu.poll = 0  # where the wheel is built without OpenMP: no spinning between steps

    def _unload(self) -> None:
        self._server = None


def _cores() -> int:
    """That this process may run on, where the system tells (a container on Linux may have few of many)."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
