"""`headway job`: submit, get, show, cancel, list. A thin client of `/v1/jobs`; prints the API's JSON, or draws it."""

import sys
from typing import Annotated, Any

import orjson
import typer

from broker.errors import InvalidJob

app = typer.Typer(help="Single jobs: submit, get, show, cancel, list.", no_args_is_help=True)

WAIT_STEP_S = 30  # the longest that one request waits
TERMINAL = ("succeeded", "failed", "cancelled", "expired")
JobId = Annotated[str, typer.Argument(metavar="ID")]


@app.command()
def submit(
    *,
    prompt: Annotated[str, typer.Argument(help="What to ask; - reads it from standard input.")],
    model: Annotated[
        str | None, typer.Option(help="Pool or alias; the first one there is if not given.")
    ] = None,
    service_class: Annotated[
        str | None, typer.Option("--class", help="P0, P1, P2 or P3; P2 if not given.")
    ] = None,
    completion: Annotated[
        bool, typer.Option("--completion", help="The raw prompt, without a chat template.")
    ] = False,
    deadline_s: Annotated[float | None, typer.Option("--deadline", help="Seconds from now.")] = None,
    callback_url: Annotated[str | None, typer.Option(help="Told when the job has ended.")] = None,
    param: Annotated[
        list[str] | None, typer.Option(help="Engine parameter, as max_tokens=64. Repeatable.")
    ] = None,
    wait: Annotated[bool, typer.Option(help="Wait until the job has ended.")] = False,
) -> None:
    """Put one job into the queue; prints what the API says, its id among it."""
    from api.cli.client import Client
    from broker.client_settings import ClientSettings

    text = sys.stdin.read() if prompt == "-" else prompt
    chat = {"messages": [{"role": "user", "content": text}]}
    body: dict[str, Any] = {"prompt": text} if completion else chat
    given = {"class": service_class, "deadline_s": deadline_s, "callback_url": callback_url}
    body |= {name: value for name, value in given.items() if value is not None}
    body |= dict(parameter(text) for text in param or ())
    with Client(ClientSettings()) as client:
        job = client.call("POST", "/v1/jobs", json={"model": model or client.first_model(), **body})
        while wait and job["status"] not in TERMINAL:
            job = client.call("GET", f"/v1/jobs/{job['id']}", params={"wait": WAIT_STEP_S})
    show(job)


@app.command()
def get(
    job_id: JobId, wait: Annotated[int, typer.Option(help="Seconds to wait for its end.", min=0, max=30)] = 0
) -> None:
    """Status, result, error, timings."""
    from api.cli.client import segment

    show(request("GET", f"/v1/jobs/{segment(job_id)}", params={"wait": wait} if wait else {}))


@app.command("show")
def show_job(
    job_id: JobId, as_json: Annotated[bool, typer.Option("--json", help="The document instead.")] = False
) -> None:
    """What happened to it, step by step, and forecasts beside what came."""
    from api.cli.client import segment

    job = request("GET", f"/v1/jobs/{segment(job_id)}")
    if as_json:
        show(job)
        return
    from rich.console import Console

    from api.cli.story import show_story

    show_story(job, Console())


@app.command()
def cancel(job_id: JobId) -> None:
    """Queued: removed. Running: aborted."""
    from api.cli.client import segment

    show(request("DELETE", f"/v1/jobs/{segment(job_id)}"))


@app.command("list")
def list_jobs(
    status: Annotated[str | None, typer.Option(help="queued, running, succeeded, …")] = None,
    service_class: Annotated[str | None, typer.Option("--class", help="P0, P1, P2 or P3.")] = None,
) -> None:
    """One line per job, newest first."""
    asked = {"status": status, "class": service_class}
    answer = request("GET", "/v1/jobs", params={name: value for name, value in asked.items() if value})
    for job in answer["data"]:
        typer.echo(f"{job['id']}  {job['status']:<9}  {job['class']}  {job['pool']}")


def parameter(text: str) -> tuple[str, Any]:
    """`name=value`; the value is JSON if it can be read so, else text. Raises InvalidJob."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise InvalidJob(f"--param {text!r} is not name=value", param=text)
    try:
        return name, orjson.loads(value)
    except orjson.JSONDecodeError:
        return name, value


def request(method: str, path: str, **options: Any) -> Any:
    from api.cli.client import Client
    from broker.client_settings import ClientSettings

    with Client(ClientSettings()) as client:
        return client.call(method, path, **options)


def show(document: Any) -> None:
    typer.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())
