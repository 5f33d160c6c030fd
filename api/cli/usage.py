"""`headway usage`: what jobs have used, as a table or as CSV. A thin client of `/v1/usage`."""

from collections.abc import Iterator
from typing import Annotated, Any

import typer

HEADINGS = {
    "requests": "REQUESTS",
    "prompt_tokens": "PROMPT",
    "cached_tokens": "CACHED",
    "output_tokens": "OUTPUT",
    "gpu_seconds": "GPU-S",
    "usd": "USD",
}
INSTEAD = {"no_prefix_reuse": "without prefix reuse", "all_large": "all on the large models"}


def usage(
    *,
    first: Annotated[
        str | None, typer.Option("--from", metavar="DAY", help="Such as 2026-11-01; default: 30 days.")
    ] = None,
    last: Annotated[
        str | None, typer.Option("--to", metavar="DAY", help="Included; default: today (UTC).")
    ] = None,
    by: Annotated[str, typer.Option(help="Some of day, tenant, class, model; comma separated.")] = "day",
    as_csv: Annotated[bool, typer.Option("--csv", help="For spreadsheets.")] = False,
) -> None:
    """Tokens, GPU-seconds and money by day, tenant, class and model; with an admin key everybody's."""
    from api.cli.client import Client
    from broker.client_settings import ClientSettings

    days = {name: day for name, day in (("from", first), ("to", last)) if day is not None}
    with Client(ClientSettings()) as client:
        if as_csv:
            typer.echo(client.text("/v1/usage", params={**days, "by": by, "format": "csv"}), nl=False)
            return
        found = client.call("GET", "/v1/usage", params={**days, "by": by})
    typer.echo("\n".join(lines(found)))


def lines(found: dict[str, Any]) -> Iterator[str]:
    """A table with the sum below it, and what it would have been otherwise."""
    from api.cli.fleet import table

    by = [name for name in next(iter(found["data"]), {}) if name not in found["total"]]
    rows = [[*(row[name] for name in by), *cells(row)] for row in found["data"]]
    total = ["total", *[""] * (len(by) - 1)] if by else []
    yield f"{found['from']} to {found['to']}"
    yield from table([*map(str.upper, by), *HEADINGS.values()], [*rows, [*total, *cells(found["total"])]])
    for name, text in INSTEAD.items():
        bill = found["instead"][name]
        if bill is not None:
            money = "" if bill["usd"] is None else f", {bill['usd']:.2f} USD"
            yield f"{text}: {bill['gpu_seconds']:.1f} GPU-s{money}"


def cells(row: dict[str, Any]) -> list[str]:
    counts = [str(row[name]) for name in HEADINGS if name not in ("gpu_seconds", "usd")]
    return [*counts, f"{row['gpu_seconds']:.1f}", "-" if row["usd"] is None else f"{row['usd']:.4f}"]
