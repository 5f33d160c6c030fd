"""`headway fleet`: pools and workers as a table; pause, resume and drain them. A thin client of `/v1/fleet`."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer

app = typer.Typer(help="Pools and workers: look, pause, resume, drain.", invoke_without_command=True)

Pool = Annotated[str, typer.Argument(metavar="POOL", help="Its name, or an alias.")]
WorkerId = Annotated[str | None, typer.Option("--worker", help="Only this worker, by its id.")]
POOL_COLUMNS = (
    "POOL",
    "STATE",
    "WORKERS",
    "SLOTS",
    "BUSY",
    "P0",
    "P1",
    "P2",
    "P3",
    "AGED",
    "DELAYED",
    "DEAD",
)
WORKER_COLUMNS = ("WORKER", "POOL", "STATE", "ENGINE", "SLOTS", "BUSY", "CLAIMED", "HOST")


@app.callback()
def show(context: typer.Context) -> None:
    """A table of pools (what waits by class) and of workers; or one of the commands below."""
    if context.invoked_subcommand is None:
        typer.echo("\n".join(tables(_call("GET", "/v1/fleet"))))


@app.command()
def pause(pool: Pool, worker: WorkerId = None) -> None:
    """Claim nothing more from the pool, or by the worker; what runs goes on, jobs are still accepted."""
    _steer(pool, worker, wish="pause")


@app.command()
def resume(pool: Pool, worker: WorkerId = None) -> None:
    """Undo a pause, or a pool's drain."""
    _steer(pool, worker, wish="resume")


@app.command()
def drain(pool: Pool, worker: WorkerId = None) -> None:
    """Refuse new jobs of the pool and serve what waits; or let the worker finish what it runs, and leave."""
    _steer(pool, worker, wish="drain")


def _steer(pool: str, worker: str | None, *, wish: str) -> None:
    from api.cli.client import segment

    path = f"/v1/fleet/{segment(pool)}" + (f"/workers/{segment(worker)}" if worker else "")
    typer.echo("\n".join(tables({"pools": [_call("POST", f"{path}/{wish}")]})))


def _call(method: str, path: str) -> Any:
    from api.cli.client import Client
    from broker.client_settings import ClientSettings

    with Client(ClientSettings()) as client:
        return client.call(method, path)


def tables(fleet: dict[str, Any]) -> Iterator[str]:
    """Lines. A worker that serves several pools is in each."""
    pools = fleet["pools"]
    yield from table(POOL_COLUMNS, [pool_row(pool) for pool in pools])
    workers = [worker_row(pool["pool"], worker) for pool in pools for worker in pool["workers"]]
    if workers:
        yield ""
        yield from table(WORKER_COLUMNS, workers)


def pool_row(pool: dict[str, Any]) -> tuple[str, ...]:
    state = "draining" if pool["draining"] else "paused" if pool["paused"] else "open"
    numbers = (len(pool["workers"]), pool["slots"], pool["busy_slots"], *pool["waiting"].values())
    return (pool["pool"], state, *map(str, (*numbers, pool["promoted"], pool["delayed"], pool["dead"])))


def worker_row(pool: str, worker: dict[str, Any]) -> tuple[str, ...]:
    numbers = (worker["slots"], worker["busy_slots"], worker["claimed"])
    return (worker["id"], pool, worker["state"], worker["engine"], *map(str, numbers), worker["host"])


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Left-aligned, two spaces between columns."""
    widths = [max(len(row[n]) for row in (columns, *rows)) for n in range(len(columns))]
    for row in (columns, *rows):
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
