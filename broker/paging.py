"""Pages of an index whose records expire by themselves: files and batches are listed through this."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from broker.connection import Pipe

T = TypeVar("T")
MAX_PAGES = 10
LEAST_PAGE = 100  # of an index that may hold mostly others' things


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
    start, page = 0, max(listing.limit, LEAST_PAGE)
    if listing.after:
        rank = await pipe.command(rank_by, listing.index, listing.after)
        start = 0 if rank is None else int(rank) + 1
    found: list[T] = []
    for _ in range(MAX_PAGES):
        names = await pipe.command(range_by, listing.index, start, start + page)
        records = await listing.load([name.decode() for name in names])
        found += [record for record in records if record is not None and listing.wanted(record)]
        start += page + 1
        if len(found) > listing.limit or len(names) <= page:
            break
    return found[: listing.limit], len(found) > listing.limit
