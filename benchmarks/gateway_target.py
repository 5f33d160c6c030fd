"""Headway as a target of the gateway harness, which runs it beside LiteLLM, vllm-router and others on the same engines.

Used by path: `run.py --targets direct,.../benchmarks/gateway_target.py`. One API process, one worker per engine, its
own Redis with AOF: what `headway up` runs, without the batch side.
"""

import sys
from pathlib import Path

from targets import Gateway  # type: ignore[import-not-found]  # the harness puts itself on the path

SLOTS = 16  # sequences that the harness' mock engine runs at once
PROGRAM = Path(sys.executable).with_name("headway")
ROOT = Path(__file__).resolve().parent.parent


def program() -> Path:
    """`headway` of the environment the project is installed in."""
    for candidate in (ROOT / ".venv" / "bin" / "headway", PROGRAM):
        if candidate.exists():
            return candidate
    raise RuntimeError("no headway program: run `make install` first")


class Headway(Gateway):  # type: ignore[misc]
    """The class of a request goes by header; nothing in the prompt is looked at."""

    name = "headway-here"
    per_class = {c: {"headers": {"X-Headway-Class": c}} for c in ("P0", "P1", "P2")}  # noqa: RUF012 - as the harness has it
    settings = "headway api + one worker per engine (16 slots each), own Redis with AOF everysec"

    def start(self, ctx):  # type: ignore[no-untyped-def]
        redis = ctx.redis()
        if not redis:
            raise RuntimeError("headway needs redis-server on PATH")
        self.port = ctx.free_port()
        config = ctx.dir / "headway.yaml"
        config.write_text(
            f"models: [{{pool: pool, aliases: [{ctx.model!r}], engine: {ctx.engines[0]}, dialect: vllm}}]\n"
        )
        env = {
            "HEADWAY_REDIS_URL": f"redis://127.0.0.1:{redis}/0",
            "HEADWAY_CONFIG": str(config),
            "HEADWAY_HOME": str(ctx.dir / "home"),
            "HEADWAY_LOG_LEVEL": "warning",
        }
        ctx.spawn([program(), "api", "--port", self.port], env=env)
        for url in ctx.engines:
            argv = [
                program(),
                "worker",
                "--pool",
                "pool",
                "--engine",
                url,
                "--dialect",
                "vllm",
                "--slots",
                SLOTS,
            ]
            ctx.spawn(argv, env=env)

    def ready_url(self, ctx):  # type: ignore[no-untyped-def]  # noqa: ARG002 - the harness' signature
        return f"http://127.0.0.1:{self.port}/readyz"
