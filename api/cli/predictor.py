"""`headway predictor`: train on own traffic or on files, report, list versions, go back to the one before."""

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from broker.errors import ConfigError
from broker.settings import Settings, load_settings

if TYPE_CHECKING:
    from predictor.own_traffic import Seen

app = typer.Typer(help="Forecasts: train them, see how good they are, go back.", no_args_is_help=True)
Files = Annotated[
    list[Path] | None,
    typer.Argument(
        help="Finished requests, JSON lines (docs/predictor.md); none: what this Headway has served."
    ),
]
HELD_OUT = 0.8  # of own traffic, where the newest part begins: what the newest models were not trained on


@app.command()
def train(
    files: Files = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Compare, but promote nothing.")] = False,
    shuffle: Annotated[bool, typer.Option("--shuffle", help="The lines are in no order of time.")] = False,
) -> None:
    """Train models, compare them with those that serve on the newest requests, and promote them if they are better."""
    from predictor.retrain import run

    settings = load_settings()
    with _rows(settings, files, newest=False) as path:
        verdict = run(path, settings.home, ordered=not shuffle, dry_run=dry_run)
    typer.echo(
        f"models {verdict.version}: {verdict.loss:g} tokens of loss on {verdict.requests} requests that they have not seen; "
        f"those that serve ({verdict.serving}): {verdict.serving_loss:g}; P90 covers {verdict.p90_cover:.3f}"
    )
    typer.echo("they serve now" if verdict.promoted else f"not promoted: {verdict.reason}")


@app.command()
def report(
    files: Files = None,
    page: Annotated[Path, typer.Option(help="HTML file to write.")] = Path("predictor.html"),
    version: Annotated[
        str | None, typer.Option(help="Of the models; the one that serves by default.")
    ] = None,
) -> None:
    """Write a page about the models: calibration, residuals by prompt type, what they look at."""
    from predictor.model_store import ModelStore

    settings = load_settings()
    store = ModelStore(settings.home)
    folder = store.folder(version or store.serving())
    with _rows(settings, files, newest=True) as path:
        command = [sys.executable, "-m", "predictor.train", "report", str(path), "--models", str(folder)]
        ended = subprocess.run(
            [*command, "--page", str(page.absolute())], check=False, capture_output=True, text=True
        )
    if ended.returncode:
        raise ConfigError((ended.stderr.strip().splitlines() or ["the report failed"])[-1])
    typer.echo(ended.stdout.strip())


@app.command()
def versions() -> None:
    """The versions of the models that there are; * serves."""
    from predictor.model_store import ModelStore

    store = ModelStore(load_settings().home)
    serving = store.serving()
    for name in store.names():
        try:
            found = store.card(name).scores
        except ConfigError as error:
            typer.echo(f"{'*' if name == serving else ' '} {name}: {error}")
            continue
        said = ", ".join(
            f"{score} {found[score]:.3g}" for score in ("tau", "mae", "p90_cover") if score in found
        )
        typer.echo(f"{'*' if name == serving else ' '} {name}: {said or 'no scores'}")


@app.command()
def rollback() -> None:
    """Serve the models again that served before; the API takes them within a second or two."""
    from predictor.model_store import ModelStore

    typer.echo(f"models {ModelStore(load_settings().home).rollback()} serve now")


@contextmanager
def _rows(settings: Settings, files: list[Path] | None, *, newest: bool) -> Iterator[Path]:
    """One file of rows. Raises ConfigError, RedisAway."""
    from predictor import own_traffic

    with tempfile.TemporaryDirectory(prefix="headway-rows-") as folder:
        path = Path(folder) / "rows.jsonl"
        if files:
            path.write_bytes(b"".join(_read(file) for file in files))
        else:
            found = asyncio.run(_collect(settings))
            lines = own_traffic.rows(found)
            start = int(HELD_OUT * len(lines)) if newest else 0
            path.write_bytes(b"\n".join(lines[start:]))
        yield path


def _read(file: Path) -> bytes:
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
    return content if content.endswith(b"\n") else content + b"\n"


async def _collect(settings: Settings) -> "list[Seen]":
    from broker.connection import Pipe
    from predictor import own_traffic

    pipe = Pipe(settings.redis_url, timeout_s=settings.redis_timeout_s)
    try:
        return await own_traffic.collect(pipe, most=settings.learn_outcomes)
    finally:
        await pipe.close()
