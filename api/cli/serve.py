"""`headway api`: the HTTP server process. Alone by hand, or as a child of `headway up`, which hands it the socket."""

import argparse
import logging
import socket
import sys

import uvicorn

from api.app import create_app
from api.cli.listener import listen, raise_file_limit
from api.connection import WatchfulProtocol
from api.server import Server
from broker import logs
from broker.errors import BrokerError
from broker.settings import Settings, load_settings
from broker.storage import check_scheme

log = logging.getLogger("headway.api")
BACKLOG = 2048
KEEP_ALIVE_S = 75  # longer than most proxies keep theirs: who closes first resets no request on its way
OWN_FILES = 128  # Redis, uploads, the libraries' own
PART_DRAIN_S = 1.0


def serve(settings: Settings, *, fd: int | None = None) -> None:
    """Until SIGTERM or Ctrl-C; open streams may then finish within HEADWAY_DRAIN_S.

    `fd`: a listening socket that was inherited, in place of HEADWAY_HOST and HEADWAY_PORT. It comes from `headway up`,
    which has stopped its workers before: what still waits then waits in vain.
    """
    logs.configure(settings, "api")
    check_scheme(settings.files_url)
    sock = listen(settings.host, settings.port) if fd is None else socket.socket(fileno=fd)
    app, files = create_app(settings), raise_file_limit()
    room = max(OWN_FILES, files - OWN_FILES)
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http=WatchfulProtocol,
        ws="none",
        lifespan="on",
        access_log=False,
        server_header=False,
        log_config=None,  # as all of the process
        log_level=settings.log_level,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        limit_concurrency=room,
    )
    if room < settings.max_connections:
        message = "HEADWAY_MAX_CONNECTIONS is %d, but this process may open %d files (ulimit -Hn): it takes %d connections"
        log.warning(message, settings.max_connections, files, room)
    drain_s = settings.drain_s if fd is None else min(settings.drain_s, PART_DRAIN_S)
    Server(config, app=app, drain_s=drain_s).run(sockets=[sock])


def main() -> None:
    parser = argparse.ArgumentParser(prog="headway api")
    parser.add_argument("--fd", type=int)
    try:
        serve(load_settings(), fd=parser.parse_args().fd)
    except BrokerError as error:
        sys.exit(f"headway api: {error}")


if __name__ == "__main__":
    main()
