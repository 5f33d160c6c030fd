"""`headway api`: the HTTP server process. Alone by hand, or as a child of `headway up`, which hands it the socket."""

import argparse
import socket
import sys

import uvicorn

from api.app import create_app
from api.cli.listener import listen
from api.connection import WatchfulProtocol
from broker.errors import BrokerError
from broker.settings import Settings, load_settings
from broker.storage import check_scheme

BACKLOG = 2048


def serve(settings: Settings, *, fd: int | None = None) -> None:
    """Until SIGTERM or Ctrl-C; open streams may then finish within HEADWAY_DRAIN_S.

    `fd`: a listening socket that was inherited, in place of HEADWAY_HOST and HEADWAY_PORT.
    """
    check_scheme(settings.files_url)
    sock = listen(settings.host, settings.port) if fd is None else socket.socket(fileno=fd)
    config = uvicorn.Config(
        create_app(settings),
        loop="uvloop",
        http=WatchfulProtocol,
        ws="none",
        lifespan="on",
        access_log=False,
        server_header=False,
        log_level=settings.log_level,
        backlog=BACKLOG,
        timeout_graceful_shutdown=int(settings.drain_s),
    )
    uvicorn.Server(config).run(sockets=[sock])


def main() -> None:
    parser = argparse.ArgumentParser(prog="headway api")
    parser.add_argument("--fd", type=int)
    try:
        serve(load_settings(), fd=parser.parse_args().fd)
    except BrokerError as error:
        sys.exit(f"headway api: {error}")


if __name__ == "__main__":
    main()
