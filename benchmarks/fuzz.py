"""What a whole Headway answers to whatever strangers send: requests made of its own /openapi.json, files, ids.

`make fuzz` installs schemathesis and runs this. It fails if anything was answered wrongly: with a status or a body that the
schema does not have, with an error of the server's own, or not in time.

    python benchmarks/fuzz.py [--quick] [--json FILE] [--seed 1]
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
from figures import Figure, arguments, report
from fuzz_schema import Found, Run, run, seeds
from fuzz_stack import KEY, Target, fuzzed_headway
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests import fuzz_checks
from tests.fuzzed import AFTER, CANARY, HEADER_TEXT, IDS, LAST_EVENT_IDS, batch_files

RUN_S = 900.0  # a run of schemathesis that takes longer hangs
AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Plan:
    """How much of each. `examples`: of an operation, by who asks."""

    open: int
    keyed: int
    stranger: int
    files: int
    texts: int


QUICK, LONG = Plan(3, 0, 0, 16, 16), Plan(70, 50, 5, 500, 300)


def schema(target: Target, plan: Plan, *, seed: int) -> Found:
    """Without keys, with one, and without the one that is wanted; pools are steered last. A quick plan leaves keys out."""
    found, nobody = Found(), dict[str, str]()
    known = seeds(target.open, nobody)
    runs = [
        (Run(target.open, seed, plan.open, RUN_S), known),
        (Run(target.keyed, seed + 1, plan.stranger, RUN_S), known),
    ]
    if plan.keyed:
        own = target.authorization
        runs.append((Run(target.keyed, seed + 2, plan.keyed, RUN_S, own), seeds(target.keyed, own)))
    runs.append((Run(target.open, seed + 3, plan.open, RUN_S, steering=True), known))
    for asked, there in runs:
        if asked.examples:
            with TemporaryDirectory() as folder:
                found += run(asked, Path(folder), known=there)
            print(f"{asked.url}: {found.cases} requests, {len(found.failures)} failures", file=sys.stderr)
    return found


@dataclass(slots=True)
class Asker:
    """Asks what a strategy draws, some at once."""

    http: httpx.AsyncClient
    seed: int

    async def all(
        self, strategy: st.SearchStrategy[Any], ask: Callable[[Any], Awaitable[list[str]]], *, cases: int
    ) -> Found:
        found, room = Found(), asyncio.Semaphore(AT_ONCE)

        async def one(drawn: Any) -> None:
            async with room:
                found.failures += await ask(drawn)
                found.cases += 1

        await asyncio.gather(*(one(each) for each in drawn_from(strategy, cases=cases, number=self.seed)))
        return found


def drawn_from(strategy: st.SearchStrategy[Any], *, cases: int, number: int) -> list[Any]:
    drawn: list[Any] = []

    @seed(number)
    @settings(
        max_examples=cases,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def draw(value: Any) -> None:
        drawn.append(value)

    draw()
    return drawn


async def texts(target: Target, plan: Plan, *, seed: int) -> tuple[Found, Found]:
    """Batch files; then ids of all kinds. Pools that were steered are as they were."""
    async with httpx.AsyncClient(base_url=target.open, timeout=60) as http:
        for pool in ("small", "large", "spare", "broken"):
            await http.post(f"/v1/fleet/{pool}/resume")
        asker = Asker(http, seed)

        async def batch(content: bytes) -> list[str]:
            return fuzz_checks.reader_complaints(content) + await fuzz_checks.batch_complaints(http, content)

        files = await asker.all(batch_files(most=20, huge=True), batch, cases=plan.files)
        job_id = seeds(target.open, {})["job_id"][0]
        ids = await asker.all(IDS, lambda thing: fuzz_checks.id_complaints(http, thing), cases=plan.texts)
        pairs = st.tuples(LAST_EVENT_IDS, AFTER)
        ids += await asker.all(
            pairs,
            lambda pair: fuzz_checks.event_complaints(http, job_id, last_id=pair[0], after=pair[1]),
            cases=plan.texts,
        )
        keys = HEADER_TEXT.map(
            lambda text: f"fuzz-{text}"
        )  # schemathesis has used others for requests of its own
        ids += await asker.all(keys, lambda key: fuzz_checks.key_complaints(http, key), cases=plan.texts)
    return files, ids


def told(target: Target) -> list[str]:
    """Logs that have what nobody may read there: a prompt or a key."""
    logs = (target.stack.home / "logs").glob("*.log*")
    texts = [(log.name, log.read_text(errors="replace")) for log in logs]
    assert texts, "there are no logs to look at"
    return [f"{name} has {secret!r}" for name, text in texts for secret in (CANARY, KEY) if secret in text]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    plan, begun = QUICK if options.quick else LONG, time.monotonic()
    with fuzzed_headway() as target:
        asked = schema(target, plan, seed=options.seed)
        files, ids = asyncio.run(texts(target, plan, seed=options.seed))
        leaked = [f"a key without end: {key}" for key in target.stack.leaked_keys()] + told(target)
    said = f"seed {options.seed}, {time.monotonic() - begun:.0f} s, one Headway, a simulated engine"
    failures = [*asked.failures, *files.failures, *ids.failures, *leaked]
    for failure in failures:
        print(failure, file=sys.stderr)
    keys = ", with and without keys" if plan.keyed else ""
    measured = [
        Figure("fuzz.cases", asked.cases, "requests", None, f"schemathesis{keys}; {said}"),
        Figure("fuzz.failures", len(failures), "answers", None, f"of all of these; {said}"),
        Figure("fuzz.batch_files", files.cases, "files", None, f"each line an answer or an error; {said}"),
        Figure(
            "fuzz.sse_ids", ids.cases, "texts", None, f"ids in paths, event ids, idempotency keys; {said}"
        ),
    ]
    report(measured, options.json)
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
