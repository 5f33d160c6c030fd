"""The broker's own fixtures: a pipe, a producer and a worker on an empty Redis."""

from tests.broker.conftest import pipe, producer, worker

__all__ = ["pipe", "producer", "worker"]
