"""The HTTP program: one FastAPI application over the parts of this package. Started by `headway api`."""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator
from importlib.metadata import version

from fastapi import FastAPI

from api import errors, schema, watch
from api.keyring import Keyring
from api.metrics.requests import Counting
from api.middleware import Gate
from api.overview import Overviews
from api.request_spans import InSpan, fastapi_options
from api.routes import admin, batches, files, jobs, openai, ops, overview, steering, usage
from api.services import open_services
from broker.config import Config, load_config
from broker.settings import Settings
from broker.tracing import open_spans


def create_app(settings: Settings, config: Config | None = None) -> FastAPI:
    """`config`: what is served; None reads headway.yaml. Connects to Redis when the server starts it.

    Raises ConfigError. The server's start fails with RedisAway or RedisUnsuitable, and with ConfigError where an open
    address has no keys, here or in Redis.
    """
    served = load_config(settings) if config is None else config
    keyring = Keyring(settings, served)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with open_services(settings, served, keyring=keyring, watch_file=config is None) as services:
            app.state.services, app.state.overviews = services, Overviews(services)
            yield
        if spans is not None:
            await asyncio.to_thread(spans.close)

    spans = open_spans(settings, "headway-api", instance=f"{socket.gethostname()}-{os.getpid()}")
    # no docs pages: they load their scripts from elsewhere
    app = FastAPI(
        title="Headway",
        version=version("headway"),
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        **fastapi_options(spans),
    )
    app.router.redirect_slashes = False  # a redirect would be made of the caller's Host header
    if spans is not None:
        app.add_middleware(InSpan, spans=spans)
    app.add_middleware(Gate, settings=settings, keyring=keyring)
    app.add_middleware(Counting)  # the last one is the outermost
    app.router.routes[:0] = [*openai.routes(), *watch.routes(), *overview.routes()]
    for each in (jobs, files, batches, ops, overview, usage, steering, admin):
        app.include_router(each.router)
    errors.install(app)
    schema.install(app)
    return app
