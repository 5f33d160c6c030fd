"""Pages of an index whose records expire by themselves: files and batches are listed through this."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from broker.connection import Pipe

T = TypeVar("T")
MAX_PAGES = 10


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """`load` gives None for records that are gone; `wanted` filters. `after`: the id that the last page ended with."""

    index: str
    load: Callable[[Sequence[str]], Awaitable[Sequence[T | None]]]
    wanted: Callable[[T], bool]
    limit: int
    after: str = ""
    oldest_first: bool = False


async def page_through(pipe: Pipe, listing: Listing[T]) -> tuple[list[T], bool]:
    """One page, and whether more may follow. Looks at no more than MAX_PAGES of the index, whatever is filtered."""
    rank_by, range_by = ("ZRANK", "ZRANGE") if listing.oldest_first else ("ZREVRANK", "ZREVRANGE")
    start = 0
    if listing.after:
        rank = await pipe.command(rank_by, listing.index, listing.after)
        start = 0 if rank is None else int(rank) + 1
    found: list[T] = []
    for _ in range(MAX_PAGES):
        names = await pipe.command(range_by, listing.index, start, start + listing.limit)
        records = await listing.load([name.decode() for name in names])
        found += [record for record in records if record is not None and listing.wanted(record)]
        start += listing.limit + 1
        if len(found) > listing.limit or len(names) <= listing.limit:
            break
    return found[: listing.limit], len(found) > listing.limit
