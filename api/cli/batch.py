"""`headway batch`: submit a file of requests, watch it, fetch what was answered. A thin client of `/v1/batches`."""

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from api.cli.client import Client, segment
from api.cli.job import parameter
from broker.client_settings import ClientSettings

app = typer.Typer(help="Files of requests: submit, status, cancel, results, list.", no_args_is_help=True)

MaxTokens = Annotated[int | None, typer.Option(min=1, help="Of each answer to a plain line.")]
Param = Annotated[
    list[str] | None, typer.Option(help="For plain lines: engine parameter, as temperature=0. Repeatable.")
]
POLL_S = 0.5
TERMINAL = ("completed", "failed", "expired", "cancelled")
INTERRUPTED = 130
BatchId = Annotated[str, typer.Argument(metavar="ID")]
Out = Annotated[Path | None, typer.Option(help="Write the answers to this file.", dir_okay=False)]


@app.command()
def submit(
    *,
    file: Annotated[Path, typer.Argument(metavar="FILE.jsonl", exists=True, dir_okay=False)],
    wait: Annotated[bool, typer.Option("--wait", help="Show the progress until it has ended.")] = False,
    model: Annotated[
        str | None, typer.Option(help="For plain lines; the first one there is if not given.")
    ] = None,
    service_class: Annotated[str, typer.Option("--class", help="P2 or P3.")] = "P2",
    endpoint: Annotated[str, typer.Option(help="As the file says if not given, else chat.")] = "",
    window: Annotated[str, typer.Option(help="Time for the whole batch, such as 24h.")] = "24h",
    out: Out = None,
    max_tokens: MaxTokens = None,
    param: Param = None,
    again: Annotated[bool, typer.Option("--again", help="A new batch, even if this file has one.")] = False,
) -> None:
    """Submit OpenAI's batch lines, or plain {"prompt": …} lines. The same command again goes on where it was."""
    from api.cli.batch_submit import Notes, Order, Patient
    from api.cli.batch_submit import submit as hand_in

    settings = ClientSettings()
    parameters = dict(parameter(text) for text in param or ())
    parameters |= {"max_tokens": max_tokens} if max_tokens else {}
    order = Order(file, model, service_class, endpoint, window, parameters)
    patient = Patient(settings, say=note)
    try:
        batch, known = hand_in(patient, order, notes=Notes(settings.home, order.fingerprint()), again=again)
        if known:
            note(
                f"this file was submitted before as {batch['id']} ({batch['status']}); --again submits it anew"
            )
        typer.echo(batch["id"])
        if wait or out:
            batch = follow(patient, batch)
    except KeyboardInterrupt:
        note(
            "\ninterrupted; what was submitted goes on. The same command resumes, `headway batch list` shows it"
        )
        raise typer.Exit(INTERRUPTED) from None
    if batch["status"] in TERMINAL:
        conclude(batch, out)


def follow(patient: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """Shows a progress bar until the batch has ended."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(batch["status"], total=None, rate="")
        while True:
            counts = batch["request_counts"]
            shown = bar.tasks[0]
            rate = f"{shown.speed:.1f}/s" if shown.speed else ""
            done = counts["completed"] + counts["failed"]
            bar.update(
                task, description=batch["status"], completed=done, total=counts["total"] or None, rate=rate
            )
            if batch["status"] in TERMINAL:
                return batch
            time.sleep(POLL_S)
            batch = patient.call("GET", f"/v1/batches/{batch['id']}")


def conclude(batch: dict[str, Any], out: Path | None) -> None:
    """Says how it ended, fetches what is wanted. Exit code 1 unless the batch is completed and every line answered."""
    counts = batch["request_counts"]
    note(f"{batch['status']}: {counts['completed']} of {counts['total']} answered, {counts['failed']} failed")
    for error in (batch["errors"] or {"data": []})["data"]:
        note(f"  {error['message']} ({error['code']})")
    if out is not None and batch["output_file_id"]:
        fetch(batch["output_file_id"], out)
        note(f"answers: {out}")
    failed = f"{counts['failed']} of {counts['total']} failed; errors"
    if batch["error_file_id"] and out is not None:
        errors = out.with_name(f"{out.stem}.errors.jsonl")
        fetch(batch["error_file_id"], errors)
        note(f"{failed} in {errors}")
    elif batch["error_file_id"]:
        note(f"{failed}: headway batch results {batch['id']} --errors")
    if batch["status"] != "completed" or counts["failed"]:
        raise typer.Exit(1)


@app.command()
def status(batch_id: BatchId) -> None:
    """The batch as the API shows it."""
    show(request("GET", f"/v1/batches/{segment(batch_id)}"))


@app.command()
def cancel(batch_id: BatchId) -> None:
    """Feed no more lines; what is answered by then is kept."""
    show(request("POST", f"/v1/batches/{segment(batch_id)}/cancel"))


@app.command()
def results(
    batch_id: BatchId,
    *,
    out: Out = None,
    errors: Annotated[bool, typer.Option("--errors", help="The lines that failed.")] = False,
) -> None:
    """The answers, in OpenAI's format, in the order of the input; to standard output if no file is named."""
    batch = request("GET", f"/v1/batches/{segment(batch_id)}")
    file_id = batch["error_file_id" if errors else "output_file_id"]
    if file_id is None:
        what = "failed lines" if errors else "answers"
        note(
            f"{batch_id} has no {what}"
            + ("" if batch["status"] in TERMINAL else f" yet: it is {batch['status']}")
        )
        raise typer.Exit(0 if batch["status"] in TERMINAL else 1)
    fetch(file_id, out)


@app.command("list")
def list_batches(limit: Annotated[int, typer.Option(min=1, max=100)] = 20) -> None:
    """One line per batch, newest first."""
    for batch in request("GET", "/v1/batches", params={"limit": limit})["data"]:
        counts = batch["request_counts"]
        done = f"{counts['completed'] + counts['failed']}/{counts['total']}"
        typer.echo(f"{batch['id']}  {batch['status']:<11}  {batch['class']}  {done:>13}  {batch['endpoint']}")


def fetch(file_id: str, out: Path | None) -> None:
    """To a file, which is there when it is whole, or to standard output."""
    with Client(ClientSettings()) as client:
        if out is None:
            client.download(f"/v1/files/{file_id}/content", sys.stdout.buffer)
            sys.stdout.buffer.flush()
            return
        unfinished = out.with_name(out.name + ".part")
        with unfinished.open("wb") as target:
            client.download(f"/v1/files/{file_id}/content", target)
        unfinished.replace(out)


def request(method: str, path: str, **options: Any) -> Any:
    with Client(ClientSettings()) as client:
        return client.call(method, path, **options)


def show(document: Any) -> None:
    typer.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())


def note(text: str) -> None:
    """For people; programs read standard output."""
    typer.echo(text, err=True)
