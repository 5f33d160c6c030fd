"""`headway top`: the live page's figures in a terminal, once a second. Wants 80 columns."""

import sys
import time
from collections.abc import Iterator
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from api.cli.client import Client
from broker.client_settings import ClientSettings
from broker.errors import BrokerError

EVERY_S = 1.0
BAR = 10
ROWS = 5  # of slow and of failed jobs
CLASSES = ("P0", "P1", "P2", "P3")
SOFT, BAD, WARN, GOOD = "bright_black", "red", "yellow", "green"
COLOURS = {"ready": GOOD, "starting": WARN, "paused": WARN, "draining": WARN}
Document = dict[str, Any]


def top(*, once: bool) -> None:
    """Until Ctrl-C. Raises RequestRefused, NoAnswer at the start."""
    console = Console(highlight=False)
    with Client(ClientSettings()) as client:
        shown = _look(client)
        if once or not sys.stdout.isatty():
            console.print(shown)
            return
        with Live(shown, console=console, screen=True, auto_refresh=False) as live:
            for following in _looks(client, shown):
                live.update(following, refresh=True)


def _looks(client: Client, shown: RenderableType) -> Iterator[RenderableType]:
    """One every EVERY_S; while there is no answer the last one, and why. `shown`: the one before."""
    while True:
        time.sleep(EVERY_S)
        try:
            shown = _look(client)
        except BrokerError as error:
            yield Group(Text(f"{error}; trying again", style=BAD), shown)
        else:
            yield shown


def _look(client: Client) -> RenderableType:
    """Raises RequestRefused, NoAnswer."""
    return screen(client.call("GET", "/v1/overview"), url=client.url)


def screen(overview: Document, *, url: str = "") -> RenderableType:
    """What is shown of an overview."""
    return Group(
        _head(overview, url),
        *(part for pool in overview["pools"] for part in _pool(pool)),
        *_recent(overview),
    )


def _head(overview: Document, url: str) -> Text:
    workers = {worker["id"]: worker for pool in overview["pools"] for worker in pool["workers"]}.values()
    ready = [worker for worker in workers if worker["state"] == "ready" and worker["breaker"] != "open"]
    slots, busy = (sum(worker[name] for worker in ready) for name in ("slots", "busy_slots"))
    waiting = sum(sum(pool["waiting"].values()) for pool in overview["pools"])
    head = Text.assemble(
        ("Headway ", "bold"),
        (f"{url}  {time.strftime('%H:%M:%S', time.localtime(overview['at']))}", SOFT),
        "\n",
    )
    head.append(
        f"{len(ready)} of {len(workers)} workers ready", style="" if len(ready) == len(workers) else BAD
    )
    head.append(
        f"   {busy} of {slots} slots busy   {waiting:,} waiting   {_cost(overview['cost']['actual'])}"
    )
    return head


def _cost(bill: Document) -> str:
    gpu_s = bill["gpu_seconds"]
    gpu = f"{gpu_s:.1f} GPU-s" if gpu_s < 360 else f"{gpu_s / 3600:.2f} GPU-h"
    return gpu if bill["usd"] is None else f"${bill['usd']:,.{2 if bill['usd'] >= 1 else 4}f} for {gpu}"


def _pool(pool: Document) -> Iterator[RenderableType]:
    detail = pool["balance_detail"]
    title = Text.assemble("\n", (pool["pool"], "bold"), (f"  {', '.join(pool['engines'])}", SOFT))
    title.append("".join(f"  {name}" for name in ("paused", "draining") if pool[name]), style=WARN)
    title.append(f"  {pool['running']} running, {pool['delayed']} held, {pool['dead']} dead")
    if detail["busy"] and len(pool["workers"]) > 1:
        title.append(f"  balance {detail['busy']['max_over_mean']:.2f}")
    yield title
    if detail["why"]:
        yield Text(f"uneven: {detail['why']}" if detail["uneven"] else detail["why"], style=WARN)
    yield _classes(pool)
    yield _workers(pool["workers"]) if pool["workers"] else Text("no worker serves this pool", style=BAD)


def _table(*columns: str, left: int = 1) -> Table:
    """The first `left` columns and the last are text, the others numbers."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style=SOFT, show_edge=False)
    for n, name in enumerate(columns):
        is_text = n < left or n == len(columns) - 1
        table.add_column(name, justify="left" if is_text else "right", no_wrap=True, overflow="ellipsis")
    return table


def _classes(pool: Document) -> Table:
    table = _table(
        "CLASS", "WAITING", "PREDICTED", "OLDEST", "1H: DONE", "WAIT P50", "P99", "TTFT P50", "P99"
    )
    table.columns[-1].justify = "right"
    for name in CLASSES:
        hour = pool["hour"].get(name, {})
        waits, firsts = hour.get("wait_s", {}), hour.get("ttft_s", {})
        waiting = pool["waiting"][name]
        table.add_row(
            name,
            f"{waiting:,}",
            seconds(pool["waiting_s"][name]) if waiting else "-",
            seconds(pool["oldest_s"][name]),
            f"{hour.get('jobs', 0):,}",
            *(seconds(times.get(at)) for times in (waits, firsts) for at in ("p50", "p99")),
        )
    return table


def _workers(workers: list[Document]) -> Table:
    table = _table("WORKER", "STATE", "SLOTS", "KV", "HITS", "TOKEN", "JOBS", left=3)
    for worker in workers:
        state = worker["state"] if worker["breaker"] == "closed" else f"breaker {worker['breaker']}"
        busy, slots = worker["busy_slots"], worker["slots"]
        filled = round(BAR * busy / slots) if slots else 0
        table.add_row(
            worker["id"],
            Text(state, style=COLOURS.get(state, BAD)),
            f"{'█' * filled}{'░' * (BAR - filled)} {busy}/{slots}",
            percent(worker["kv_used_share"]),
            percent(worker["prefix_hit_share"]),
            seconds(worker["tpot_s"]),
            " ".join(f"{n} {name}" for name, n in worker["jobs"].items()),
        )
    return table


def _recent(overview: Document) -> Iterator[RenderableType]:
    for name, jobs in overview["recent"].items():
        if jobs:
            table = _table(f"LATELY {name.upper()}", "CLASS", "WAITED", "FIRST TOKEN", "ENDED")
            for job in jobs[:ROWS]:
                ended = time.strftime("%H:%M:%S", time.localtime(job["ended"]))
                waited, first = seconds(job["wait_s"]), seconds(job["first_s"])
                table.add_row(job["job_id"], job["service_class"], waited, first, ended)
            yield Group(Text(), table)


def seconds(s: float | None) -> str:
    """Four significant places at most."""
    if s is None:
        return "-"
    if s < 1:
        return f"{1000 * s:.0f}ms"
    if s < 120:
        return f"{s:.1f}s" if s < 30 else f"{s:.0f}s"
    return f"{s / 60:.0f}min" if s < 7200 else f"{s / 3600:.1f}h"


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f}%"
