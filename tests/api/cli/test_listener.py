"""The API's socket: any free port, a clear message for a taken one."""

import asyncio
import os
import socket

import pytest

from api.cli.listener import answers, answers_200, listen, url_of
from broker.errors import ConfigError


def test_port_0_takes_any_free_port_and_the_url_names_it() -> None:
    with listen("127.0.0.1", 0) as sock:
        assert url_of(sock, host="127.0.0.1") == f"http://127.0.0.1:{sock.getsockname()[1]}"
        with socket.create_connection(sock.getsockname()):
            pass


def test_a_taken_port_names_its_holder_and_the_way_out() -> None:
    with listen("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"port {port}.*pid {os.getpid()}.*HEADWAY_PORT"):
            listen("127.0.0.1", port)


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"192\.0\.2\.1"):
        listen("192.0.2.1", 0)


def test_a_wildcard_address_is_shown_as_loopback() -> None:
    with listen("127.0.0.1", 0) as sock:
        assert url_of(sock, host="0.0.0.0").startswith("http://127.0.0.1:")
        assert url_of(sock, host="::").startswith("http://[::1]:")


async def test_nobody_listening_is_not_ready() -> None:
    with listen("127.0.0.1", 0) as sock:
        url = url_of(sock, host="127.0.0.1")
    assert not await answers_200(f"{url}/readyz")


def test_another_setting_than_the_apis_port_is_named() -> None:
    with listen("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        with pytest.raises(ConfigError, match=r"HEADWAY_FLOWER_PORT=\d+ \(0"):
            listen("127.0.0.1", port, setting="HEADWAY_FLOWER_PORT")


async def test_a_server_that_says_no_answers_all_the_same() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"HTTP/1.1 401 Unauthorized\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        assert await answers(url)
        assert not await answers_200(url)
