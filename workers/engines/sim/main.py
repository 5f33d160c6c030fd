"""The simulated engine's program: `python -m workers.engines.sim.main --port P …`, or `headway sim-engine`.

Prints one line of JSON when it serves: `{"url", "model", "pid"}`. SIGTERM or SIGINT ends it at once, as an engine's end does.
"""

import argparse
import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import get_args

import orjson
import uvloop
from aiohttp import web

from broker.errors import ConfigError
from predictor import perf
from workers.engines.sim.asks import Model
from workers.engines.sim.failures import Failures
from workers.engines.sim.realtime import Runner
from workers.engines.sim.replica import Replica
from workers.engines.sim.scheduler import Batching, Limits, Policy
from workers.engines.sim.server import Server

DEFAULT_GPU = "llama-3.1-8b-bf16@1xh100"
EPILOG = "Known GPU replicas: "


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="headway sim-engine",
        description="A GPU replica that is not there: vLLM's API and metrics, step times from a fitted model.",
        epilog=EPILOG + ", ".join(perf.known()),
    )
    found.add_argument("--host", default="127.0.0.1")
    found.add_argument("--port", type=int, default=8100, help="0: any free one")
    found.add_argument("--model", default="simulated", help="the name that it is served under")
    found.add_argument(
        "--gpu", default=DEFAULT_GPU, help=f"hardware and model, as below (default: {DEFAULT_GPU})"
    )
    found.add_argument("--speed", type=float, default=1.0, help="simulated seconds per second")
    found.add_argument("--seed", type=int, default=0, help="of output lengths and failures")
    found.add_argument(
        "--output-tokens", type=int, default=200, help="mean length of answers that end by themselves"
    )
    found.add_argument("--request-log", type=Path, metavar="FILE", help="gets ids of answers, no text")
    engine = found.add_argument_group("engine")
    engine.add_argument("--kv-tokens", type=int, help="default: what fits into the GPU's memory")
    engine.add_argument("--max-model-len", type=int, default=8192)
    engine.add_argument("--max-num-seqs", type=int, default=256)
    engine.add_argument("--max-num-batched-tokens", type=int, default=2048)
    engine.add_argument("--block-size", type=int, default=16)
    engine.add_argument("--scheduling-policy", choices=get_args(Policy), default="fcfs")
    engine.add_argument("--batching", choices=get_args(Batching), default="continuous")
    engine.add_argument("--no-prefix-caching", action="store_true")
    wrong = found.add_argument_group("failures", "N counts requests from 1; rates are shares of requests")
    wrong.add_argument("--crash-after", type=int, default=0, metavar="N", help="end at its first token")
    wrong.add_argument(
        "--hang-after", type=int, default=0, metavar="N", help="stand still from its first token on"
    )
    for name in ("hang", "error", "busy", "garbage"):
        wrong.add_argument(f"--{name}-rate", type=float, default=0.0, metavar="SHARE")
    wrong.add_argument(
        "--slow-factor", type=float, default=1.0, help="steps take this much longer than modelled"
    )
    wrong.add_argument("--wrong-usage", action="store_true", help="token counts are wrong")
    return found


def build(args: argparse.Namespace) -> Server:
    """Raises ConfigError."""
    hardware = perf.load(args.gpu)
    if args.speed <= 0:
        raise ConfigError(f"--speed {args.speed}: must be above 0")
    limits = Limits(
        kv_tokens=args.kv_tokens or hardware.replica.kv_capacity_tokens(),
        max_model_len=args.max_model_len,
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens,
        block_tokens=args.block_size,
        policy=args.scheduling_policy,
        batching=args.batching,
        prefix_caching=not args.no_prefix_caching,
    )
    names = (
        "crash_after",
        "hang_after",
        "hang_rate",
        "error_rate",
        "busy_rate",
        "garbage_rate",
        "slow_factor",
    )
    failures = Failures(
        seed=args.seed, wrong_usage=args.wrong_usage, **{name: getattr(args, name) for name in names}
    )
    runner = Runner(Replica(limits, hardware), speed=args.speed, slow_factor=failures.slow_factor)
    model = Model(args.model, limits, args.output_tokens, args.seed)
    return Server(runner, model, failures=failures, request_log=args.request_log)


async def serve(server: Server, args: argparse.Namespace) -> None:
    """Until a signal."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    runner = web.AppRunner(server.app(), handler_cancellation=True, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, args.host, args.port, shutdown_timeout=0)
        await site.start()
        address = runner.addresses[0]
        ready = {"url": f"http://{args.host}:{address[1]}", "model": args.model, "pid": os.getpid()}
        print(orjson.dumps(ready).decode(), flush=True)  # noqa: T201 - whoever started it waits for this line
        await stop.wait()
    finally:
        await runner.cleanup()


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    args = parser().parse_args(argv)
    try:
        uvloop.run(serve(build(args), args))
    except (ConfigError, OSError) as error:
        print(f"headway sim-engine: {error}", file=sys.stderr)  # noqa: T201 - a program's last words
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
