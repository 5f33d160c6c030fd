"""The HTTP program: one FastAPI application over the parts of this package. Started by `headway api`."""

import contextlib
from collections.abc import AsyncIterator
from importlib.metadata import version

from fastapi import FastAPI

from api import errors, schema, watch
from api.keyring import Keyring
from api.middleware import Gate
from api.routes import admin, batches, files, jobs, openai, ops, steering
from api.services import open_services
from broker.config import Config, load_config
from broker.settings import Settings


def create_app(settings: Settings, config: Config | None = None) -> FastAPI:
    """`config`: what is served; None reads headway.yaml. Connects to Redis when the server starts it.

    Raises ConfigError. The server's start fails with RedisAway or RedisUnsuitable.
    """
    served = load_config(settings) if config is None else config
    keyring = Keyring(settings, served)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with open_services(settings, served, keyring=keyring, watch_file=config is None) as services:
            app.state.services = services
            yield

    # no docs pages: they load their scripts from elsewhere
    app = FastAPI(
        title="Headway", version=version("headway"), lifespan=lifespan, docs_url=None, redoc_url=None
    )
    app.add_middleware(Gate, settings=settings, keyring=keyring)
    app.router.routes[:0] = [*openai.routes(), *watch.routes()]
    for router in (jobs.router, files.router, batches.router, ops.router, steering.router, admin.router):
        app.include_router(router)
    errors.install(app)
    schema.install(app)
    return app
