"""`headway top`: everything there is to see, in 80 columns."""

import io
from typing import Any

from rich.console import Console

from api.cli.top import percent, screen, seconds

WORKER = {
    "id": "host-12345-abcde",
    "state": "ready",
    "breaker": "closed",
    "slots": 8,
    "busy_slots": 4,
    "kv_used_share": 0.5,
    "prefix_hit_share": None,
    "tpot_s": 0.025,
    "jobs": {"P0": 1, "P2": 3},
}
TIMES = {"p50": 0.2, "p95": 1.0, "p99": 31.0}
POOL = {
    "pool": "small",
    "engines": ["vllm"],
    "paused": False,
    "draining": True,
    "running": 4,
    "delayed": 2,
    "dead": 1,
    "waiting": {"P0": 1, "P1": 0, "P2": 12_000, "P3": 0},
    "waiting_s": {"P0": 1.0, "P1": 0.0, "P2": 7300.0, "P3": 0.0},
    "oldest_s": {"P0": 0.3, "P1": None, "P2": 600.0, "P3": None},
    "balance_detail": {"busy": {"max_over_mean": 1.8}, "uneven": True, "why": "w7 holds 4 long P2 jobs"},
    "workers": [WORKER, WORKER | {"id": "host-2-fghij", "breaker": "open"}],
    "hour": {"P0": {"jobs": 1234, "wait_s": TIMES, "ttft_s": TIMES}},
}
FAILED = {
    "job_id": f"job_{'0' * 26}.small",
    "service_class": "P1",
    "wait_s": 1.0,
    "first_s": 2.0,
    "ended": 0.0,
}
OVERVIEW = {
    "at": 0.0,
    "pools": [POOL, POOL | {"pool": "large", "workers": [], "hour": {}}],
    "recent": {"slow": [], "failed": [FAILED]},
    "cost": {"actual": {"gpu_seconds": 7200.0, "usd": 3.5}},
}


def lines(overview: dict[str, Any]) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=80).print(screen(overview, url="http://127.0.0.1:8000"))
    return out.getvalue().splitlines()


def test_it_fits_80_columns_and_names_what_matters() -> None:
    shown = lines(OVERVIEW)
    assert max(map(len, shown)) <= 80
    text = "\n".join(" ".join(line.split()) for line in shown)
    assert "1 of 2 workers ready 4 of 8 slots busy 24,002 waiting $3.50 for 2.00 GPU-h" in text
    assert "small vllm draining 4 running, 2 held, 1 dead balance 1.80" in text
    assert "uneven: w7 holds 4 long P2 jobs" in text
    assert "P0 1 1.0s 300ms 1,234 200ms 31s 200ms 31s" in text
    assert "P2 12,000 2.0h 10min 0 - - - -" in text
    assert "host-12345-abcde ready █████░░░░░ 4/8 50% - 25ms 1 P0 3 P2" in text
    assert "host-2-fghij breaker open" in text
    assert "no worker serves this pool" in text
    assert f"{FAILED['job_id']} P1 1.0s 2.0s" in text


def test_times_and_shares_are_short() -> None:
    assert [seconds(s) for s in (None, 0.0049, 29.94, 119.0, 7199.0, 7200.0)] == [
        "-",
        "5ms",
        "29.9s",
        "119s",
        "120min",
        "2.0h",
    ]
    assert [percent(share) for share in (None, 0.0, 1.0)] == ["-", "0%", "100%"]
