"""The two ends of a job's stream: a writer with numbered payloads, and a reader that checks what it gets."""

from broker.connection import Pipe
from broker.consumer import Chunk, Consumer
from broker.following import follow
from broker.job import Lease
from broker.scripts import Ending, Return
from broker.stream import Mailbox, Message, Position
from tests.broker.jobs import ERROR

END = Ending(succeeded=True, data=b"")
START = Position()


class Writer:
    """A worker's hands on one job: writes numbered payloads, `count` in one entry."""

    def __init__(self, worker: Consumer, lease: Lease) -> None:
        self.worker, self.lease, self.seq = worker, lease, 0

    async def write(self, count: int = 1) -> None:
        first, self.seq = self.seq + 1, self.seq + count
        data = b"\n".join(b"%d.%d" % (self.lease.attempt, n) for n in range(first, self.seq + 1))
        assert await self.worker.append([Chunk(self.lease.job_id, self.lease.token, self.seq, data)]) == [
            True
        ]

    async def finish(self) -> None:
        await self.worker.finish(self.lease, END)

    async def starts_again(self) -> "Writer":
        """The next attempt, by a new token."""
        await self.worker.release(self.lease, Return("error", error=ERROR))
        [lease] = (await self.worker.claim(1)).leases
        return Writer(self.worker, lease)


async def read(pipe: Pipe, box: Mailbox, after: Position = START) -> list[Message]:
    return [message async for message in follow(pipe, box, after=after)]


def payloads(messages: list[Message]) -> list[str]:
    """Also checks that a message's position is that of its last payload."""
    found = []
    for message in messages:
        if message.kind == "chunk":
            lines = message.data.decode().split("\n")
            assert lines[-1].endswith(f".{message.at.seq}")
            found += lines
    return found


def numbered(attempt: int, first: int, last: int) -> list[str]:
    return [f"{attempt}.{n}" for n in range(first, last + 1)]
