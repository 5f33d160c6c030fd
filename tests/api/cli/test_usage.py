"""`headway usage`, without a server: its table."""

from typing import Any

from api.cli.usage import lines

TOTAL: dict[str, Any] = {
    "requests": 3,
    "attempts": 4,
    "prompt_tokens": 300,
    "output_tokens": 30,
    "cached_tokens": 120,
    "gpu_seconds": 3.25,
    "usd": 0.5,
}
BILL = {"gpu_seconds": 4.0, "usd": 0.75}


def found(*rows: dict[str, Any], all_large: dict[str, Any] | None = None) -> dict[str, Any]:
    instead = {"actual": BILL, "no_prefix_reuse": BILL, "all_large": all_large}
    return {"from": "2026-11-01", "to": "2026-11-02", "data": list(rows), "total": TOTAL, "instead": instead}


def test_rows_have_their_groups_first_and_their_sum_below() -> None:
    row = {"day": "2026-11-01", "tenant": "acme"} | TOTAL
    assert list(lines(found(row, row | {"usd": None}, all_large={"gpu_seconds": 9.0, "usd": None}))) == [
        "2026-11-01 to 2026-11-02",
        "DAY         TENANT  REQUESTS  PROMPT  CACHED  OUTPUT  GPU-S  USD",
        "2026-11-01  acme    3         300     120     30      3.2    0.5000",
        "2026-11-01  acme    3         300     120     30      3.2    -",
        "total               3         300     120     30      3.2    0.5000",
        "without prefix reuse: 4.0 GPU-s, 0.75 USD",
        "all on the large models: 9.0 GPU-s",
    ]


def test_a_time_without_jobs_has_a_sum_only() -> None:
    assert list(lines(found()))[1:3] == [
        "REQUESTS  PROMPT  CACHED  OUTPUT  GPU-S  USD",
        "3         300     120     30      3.2    0.5000",
    ]
