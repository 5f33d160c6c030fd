"""The `headway` program: its commands, and how an error is shown. Each command's work is in a module of its own."""

import os
import sys
from importlib.metadata import version
from typing import Annotated

import typer

from api.cli import batch, fleet, job, keys, predictor
from api.cli.chat import chat
from api.cli.parts import python
from api.cli.usage import usage
from broker.errors import BrokerError

app = typer.Typer(
    help="One queue in front of LLM engines.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(job.app, name="job")
app.add_typer(batch.app, name="batch")
app.add_typer(fleet.app, name="fleet")
app.add_typer(keys.app, name="keys")
app.add_typer(predictor.app, name="predictor")
app.command()(chat)
app.command()(usage)


@app.command()
def top(
    once: Annotated[
        bool, typer.Option("--once", help="Print it once; as it is anyway where this is no terminal.")
    ] = False,
) -> None:
    """Watch pools, workers, queues, waits and balance; Ctrl-C ends it."""
    from api.cli.top import top as watch

    watch(once=once)


@app.callback(invoke_without_command=True)
def options(
    show_version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
) -> None:
    """One queue in front of LLM engines: chat, agent and batch jobs, pulled as the engines have room."""
    if show_version:
        typer.echo(f"headway {version('headway')}")
        raise typer.Exit


@app.command()
def up(
    detach: Annotated[bool, typer.Option("--detach", help="Return when everything is ready.")] = False,
) -> None:
    """Start everything in HEADWAY_HOME (./.headway) and keep it running; Ctrl-C stops it."""
    if detach:
        from api.cli.down import detach as start_detached

        start_detached(say=typer.echo)
        return
    os.execv(sys.executable, python("api.cli.up"))  # noqa: S606 - a supervisor without what the other commands load


@app.command()
def down() -> None:
    """Stop what `headway up` runs in HEADWAY_HOME."""
    from api.cli.down import down as stop

    stop(say=typer.echo)


@app.command()
def api(
    host: Annotated[str | None, typer.Option(help="Address to listen on, over HEADWAY_HOST.")] = None,
    port: Annotated[int | None, typer.Option(help="Port, over HEADWAY_PORT; 0: any free one.")] = None,
) -> None:
    """The HTTP server alone."""
    from api.cli.serve import serve
    from broker.settings import load_settings

    given = {"host": host, "port": port}
    serve(load_settings(**{name: value for name, value in given.items() if value is not None}))


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, add_help_option=False
)
def worker(context: typer.Context) -> None:
    """One engine worker: --pool NAME --engine llamacpp | http://HOST:PORT [--dialect …]."""
    os.execv(sys.executable, python("workers.main", *context.args))  # noqa: S606 - becomes the worker


@app.command(
    "sim-engine",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    add_help_option=False,
)
def sim_engine(context: typer.Context) -> None:
    """A simulated GPU behind vLLM's API: --port P --gpu MODEL@GPU [--speed X] [--crash-after N …]."""
    os.execv(sys.executable, python("workers.engines.sim.main", *context.args))  # noqa: S606 - becomes the engine


@app.command()
def doctor() -> None:
    """Check Redis, Celery, engines, disk and packages, and say what to do."""
    from api.cli.doctor import examine

    if not examine(say=typer.echo):
        raise typer.Exit(1)


def main() -> None:
    try:
        app(prog_name="headway")
    except BrokerError as error:
        typer.echo(f"headway: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
