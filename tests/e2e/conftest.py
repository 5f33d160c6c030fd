"""One stack for all end-to-end tests that leave it whole. They run in one xdist process: two cores hold one."""

from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

from tests.e2e.stack import Stack


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/e2e/" in item.path.as_posix():
            item.add_marker(pytest.mark.xdist_group("e2e"))
            item.add_marker(pytest.mark.timeout(240))


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """AOF on every write, so that killing Redis loses nothing that was accepted."""
    stack = Stack.start(tmp_path_factory.mktemp("headway"), HEADWAY_APPENDFSYNC="always")
    yield stack
    stack.stop()


@pytest.fixture
def sdk(stack: Stack) -> Iterator[Any]:
    """The openai package's client. Untyped: its request types want every message spelt out as their own classes."""
    with OpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client
