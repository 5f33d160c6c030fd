"""The API's listening socket, and the one HTTP question that `headway up` asks while it waits."""

import asyncio
import contextlib
import resource
import socket
from urllib.parse import urlsplit

import psutil

from broker.errors import ConfigError

BACKLOG = 2048
MANY_FILES = 1 << 20  # where there is no limit
UNSENT_BYTES = 128 * 1024  # that the kernel takes of an answer beyond what is on its way
UNHEARD_MS = 60_000  # a client that acknowledges nothing for so long is gone
ANSWER_S = 3.0
MAX_PORT = 65535
OPEN_HOSTS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - where a wildcard address is reached from here


def listen(host: str, port: int, *, setting: str = "HEADWAY_PORT") -> socket.socket:
    """A listening socket; port 0 takes any free one. Raises ConfigError that says who has the port and what to do.

    `setting`: the variable to change.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise ConfigError(f"HEADWAY_HOST={host} is no address of this machine: {error.strerror}") from None
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        _bound(sock)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise ConfigError(
            f"cannot listen on {host} port {port}: {error.strerror}{_taken_by(port)}. Stop what uses it, "
            f"or choose another: {setting}={port + 1 if port < MAX_PORT else MAX_PORT - 1} (0 takes any free one)"
        ) from None
    return sock


def _bound(sock: socket.socket) -> None:
    """Options that accepted connections inherit. Where a system has none, the transport's own limits have to do."""
    for name, value in (("TCP_NOTSENT_LOWAT", UNSENT_BYTES), ("TCP_USER_TIMEOUT", UNHEARD_MS)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def raise_file_limit() -> int:
    """As many open files as this process may have; the number. A connection is one of them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MANY_FILES if hard == resource.RLIM_INFINITY else hard
    if soft not in (wanted, resource.RLIM_INFINITY):
        with contextlib.suppress(ValueError, OSError):  # a kernel may allow fewer than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    return MANY_FILES if soft == resource.RLIM_INFINITY else soft


def _taken_by(port: int) -> str:
    with contextlib.suppress(psutil.Error):  # other users' sockets may be hidden
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr[1:] == (port,) and connection.pid:
                return f" (by pid {connection.pid}, {psutil.Process(connection.pid).name()})"
    return ""


def url_of(sock: socket.socket, *, host: str) -> str:
    """As a client on this machine would write it."""
    host = OPEN_HOSTS.get(host, host)
    return f"http://{f'[{host}]' if ':' in host else host}:{sock.getsockname()[1]}"


async def answers_200(url: str) -> bool:
    """Whether GET answers 200 in time."""
    return await status_of(url) == b"200"


async def answers(url: str) -> bool:
    """Whether a web server answers there in time, whatever it says."""
    return bool(await status_of(url))


async def status_of(url: str) -> bytes:
    """Of GET; empty without an answer. Without an HTTP library, for the supervisor stays small."""
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    host = parts.netloc.rpartition("@")[2]
    ask = f"GET {parts.path or '/'} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    try:
        async with asyncio.timeout(ANSWER_S):
            port = parts.port or (443 if secure else 80)
            reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=secure or None)
            with contextlib.closing(writer):
                writer.write(ask.encode())
                return b"".join((await reader.readline()).split(b" ")[1:2])
    except (OSError, ValueError, TimeoutError):
        return b""
