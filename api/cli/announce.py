"""What `headway up` says once everything runs: the parts, Redis, engines that do not answer, how to call the commands."""

import asyncio
import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from api.cli.home import Home
from api.cli.listener import answers
from api.cli.supervisor import Running
from broker.config import Config


def part_lines(parts: Iterable[Running], *, home: Home) -> Iterator[str]:
    shown = list(parts)
    width = max(len(running.part.name) for running in shown)
    for running in shown:
        part = running.part
        yield f"  {part.name:<{width}}  pid {running.identity.pid:<7}  {part.url or ''}".rstrip()
    yield f"  logs in {home.log('*').parent}"


async def pool_lines(config: Config) -> list[str]:
    """What a user has to know before the first request."""
    embedded = [model.pool for model in config.models if model.embedded]
    lines = []
    if embedded:
        lines.append(
            f"  pools {', '.join(embedded)}: the embedded demonstration model; name real engines in headway.yaml"
        )
    remote = [model for model in config.models if not model.embedded]
    there = await asyncio.gather(*(answers(model.engine) for model in remote))
    return lines + [
        f"  pool {model.pool}: its engine at {model.engine} does not answer; requests to it get 503 until it does"
        for model, answered in zip(remote, there, strict=True)
        if not answered
    ]


def command_line() -> str:
    """How to call `headway` from the user's shell; empty if the one on PATH is this one."""
    folder = Path(sys.executable).parent
    own = folder / "headway"
    found = shutil.which("headway")
    if not own.exists() or (found and Path(found).resolve() == own.resolve()):
        return ""
    shown = Path(os.path.relpath(folder))
    shown = folder if shown.parts[:1] == ("..",) else shown
    activate = f", or first: . {shown / 'activate'}" if (folder / "activate").exists() else ""
    return f"  commands: {shown / 'headway'} chat 'Hello'{activate}"
