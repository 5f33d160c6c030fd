"""The system driver of `make chaos`: a whole Headway is tormented for minutes under load, and then judged by what was heard."""

import asyncio
import shutil
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from benchmarks.figures import Figure
from tests.chaos.client import Client
from tests.chaos.faults import CUT_S, SICK_S, SLOW_S, STALL_S, ZOMBIE_S, Tormentor
from tests.chaos.judge import RULES, Finding, count, judge
from tests.chaos.settled import memory_mb, until_settled
from tests.chaos.system import MODEL, System, system
from tests.chaos.traffic import Receiver, Traffic

BATCH_SHARE = 0.4  # of all jobs that are lines of batches
BATCH_EVERY_S = 20.0
SPARE = 1.25  # what is sent beyond what is asked for, as faults hold some up
LONGEST = 2.0  # times the minutes that were asked for
PLURAL = {"stale_write": "stale_writes", "stream_gap": "stream_gaps"}
LASTS_S = {"frozen": ZOMBIE_S, "cut": CUT_S, "stalled": STALL_S, "slow": SLOW_S, "sick": SICK_S}
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """`jobs`: accepted ones, at least. `appendfsync`: with "everysec" a killed Redis may lose what it had not written."""

    minutes: float
    jobs: int
    seed: int
    appendfsync: str = "always"


@dataclass(frozen=True, slots=True)
class Verdict:
    findings: list[Finding]
    figures: list[Figure]


def run(plan: Plan, say: Say) -> Verdict:
    """The folder with all logs is kept if something was found."""
    folder = Path(tempfile.mkdtemp(prefix="headway-chaos-"))
    verdict = asyncio.run(_run(plan, folder, say=say))
    for finding in verdict.findings[:40]:
        say(f"  {finding.rule}: {finding.about}: {finding.why[:400]}")
    if verdict.findings:
        say(f"  logs: {folder}")
    else:
        shutil.rmtree(folder)
    return verdict


async def _run(plan: Plan, folder: Path, *, say: Say) -> Verdict:
    timeout = aiohttp.ClientTimeout(total=60, sock_connect=2, sock_read=20)
    async with (
        system(folder, appendfsync=plan.appendfsync) as this,
        Receiver().listening() as receiver,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as http,
    ):
        client = Client(http, list(this.urls.values()), model=MODEL, seed=plan.seed)
        wanted = plan.jobs * SPARE / (plan.minutes * 60)
        lines = max(10, round(wanted * BATCH_SHARE * BATCH_EVERY_S))
        traffic = Traffic(client, receiver, rate=wanted * (1 - BATCH_SHARE), batch_lines=lines)
        tormentor = Tormentor(this, client, traffic, seed=plan.seed)
        before_mb = await memory_mb(this)
        await _torment(plan, this, traffic, tormentor=tormentor, client=client, say=say)
        say(f"  {_accepted(client)} jobs; waiting for the rest")
        await traffic.finish()
        say(f"  all have ended; {_heard(client)}")
        findings = tormentor.stuck + await until_settled(this, client, http)
        grown_mb = await memory_mb(this, drop=True) - before_mb
        findings += judge(client.jobs, asked=this.asked(), refusals=client.refusals)
        findings += [Finding("lost", job.tag, "its callback never came") for job in receiver.missing()]
        figures = [*_judged(plan, client, findings), *_recovery(tormentor), *_sizes(this, grown_mb)]
        return Verdict(findings, figures)


async def _torment(
    plan: Plan, this: System, traffic: Traffic, *, tormentor: Tormentor, client: Client, say: Say
) -> None:
    began = time.monotonic()

    def enough() -> bool:
        past = (time.monotonic() - began) / (plan.minutes * 60)
        return past >= LONGEST or (past >= 1 and _accepted(client) >= plan.jobs)

    pump = asyncio.create_task(traffic.run(every_s=BATCH_EVERY_S))
    memory = asyncio.create_task(_watch_memory(this))
    try:
        await tormentor.run(say=say, enough=enough)
    finally:
        for task in (pump, memory):
            task.cancel()
        await asyncio.gather(pump, memory, return_exceptions=True)


async def _watch_memory(this: System) -> None:
    while True:
        await asyncio.sleep(2)
        this.look_at_memory()


def _accepted(client: Client) -> int:
    return sum(job.accepted for job in client.jobs)


def _heard(client: Client) -> str:
    """How much there was to be judged."""
    streams = [stream for job in client.jobs for stream in job.streams]
    kinds = Counter(piece.kind for stream in streams for piece in stream)
    again = sum(job.attempts > 1 for job in client.jobs)
    return f"{len(streams)} streams, {dict(kinds)}, {again} jobs were tried again, {client.degraded} answers degraded"


def _judged(plan: Plan, client: Client, findings: list[Finding]) -> list[Figure]:
    setting = f"seed {plan.seed}, {plan.minutes:g} minutes, AOF {plan.appendfsync}, 2 cores for all"
    ends = Counter(job.sights[-1].status for job in client.jobs if job.accepted and job.sights)
    later = sum(refusal.retry_after for refusal in client.refusals)
    counts = count(findings)
    figures = [Figure("chaos.jobs", _accepted(client), "jobs", None, setting)]
    figures += [
        Figure(f"chaos.{PLURAL.get(rule, rule)}", counts[rule], "jobs", None, setting) for rule in RULES
    ]
    figures.append(
        Figure("chaos.not_settled", counts.get("not_settled", 0), "things at the end", None, setting)
    )
    figures += [Figure(f"chaos.ended.{status}", n, "jobs", None, setting) for status, n in ends.items()]
    figures.append(Figure("chaos.refused_for_now", later, "answers with Retry-After", None, setting))
    figures.append(Figure("chaos.broken_off", client.broken, "requests without an answer", None, setting))
    return figures


def _recovery(tormentor: Tormentor) -> list[Figure]:
    figures = []
    for name, took_s in tormentor.took_s.items():
        if not took_s:
            continue
        lasts_s = LASTS_S.get(name.rpartition("_")[2], 0)
        setting = f"{len(took_s)} times" + (f", each of {lasts_s:g} s, from its end" if lasts_s else "")
        p99 = statistics.quantiles(took_s, n=100, method="inclusive")[98] if len(took_s) > 1 else took_s[0]
        figures += [
            Figure(f"chaos.recovery_s_p50.{name}", round(statistics.median(took_s), 2), "s", None, setting),
            Figure(f"chaos.recovery_s_p99.{name}", round(p99, 2), "s", None, setting),
        ]
    return figures


def _sizes(this: System, grown_mb: float) -> list[Figure]:
    figures = [Figure("chaos.redis_growth_mb", round(grown_mb, 2), "MB", None, "without what has a TTL")]
    for kind in ("api", "worker", "celery", "rq"):
        most = max(rss for name, rss in this.rss.items() if name.startswith(kind))
        figures.append(Figure(f"chaos.rss_mb.{kind}", most >> 20, "MB", None, "the most that one had"))
    return figures
