"""What jobs have cost and what they would have cost otherwise, as documents: for `/v1/usage` and for the live page."""

from collections.abc import Iterable, Mapping
from typing import Any

from api.services import Services
from broker import accounts
from broker.accounts import NUMBERS, Book, Row, Used
from broker.config import Config
from predictor.counterfactual import Bill, Instead, Pool, instead, rates
from predictor.timing import speed_of

COUNTS = tuple(name for name in NUMBERS if name not in ("gpu_us", "nano_usd"))
Document = dict[str, Any]


async def costs(services: Services) -> Document:
    """Of all tenants since the beginning: `instead_document`. Raises RedisAway."""
    books = await accounts.all_totals(services.pipe)
    used = {pool: book.all_used for pool, book in books.items()}
    return instead_document(instead(used, pools_of(books, services.config)), services.config)


def pools_of(books: Mapping[str, Book], config: Config) -> dict[str, Pool]:
    """What GPU time gives in each pool, and costs. `books`: since the beginning."""
    return {name: _pool(name, book, config=config) for name, book in books.items()}


def _pool(name: str, book: Book, *, config: Config) -> Pool:
    model = config.find(name)
    gpus, price = (model.gpus, model.gpu_hour_usd) if model else (1, 0.0)
    larger = next((route.large for route in config.routes if route.small == name), "")
    return Pool(rates(book, assumed_s=speed_of(model).prefill_s_per_token, gpus=gpus), price, larger)


def used_document(used: Used, *, priced: bool) -> Document:
    """`usd` is null where no price is set and none was charged."""
    usd = round(used.usd, 6) if priced or used.nano_usd else None
    return {name: getattr(used, name) for name in COUNTS} | {"gpu_seconds": round(used.gpu_s, 3), "usd": usd}


def instead_document(found: Instead, config: Config) -> Document:
    """What it was, and what it would have been."""
    bills = {
        "actual": found.actual,
        "no_prefix_reuse": found.no_prefix_reuse,
        "all_large": found.all_large,
    }
    return {name: _bill(bill, priced=is_priced(config)) for name, bill in bills.items()}


def is_priced(config: Config) -> bool:
    """Whether any pool has a price."""
    return any(model.gpu_hour_usd for model in config.models)


def _bill(bill: Bill | None, *, priced: bool) -> Document | None:
    if bill is None:
        return None
    return {"gpu_seconds": round(bill.gpu_s, 3), "usd": round(bill.usd, 6) if priced or bill.usd else None}


def grouped(rows: Iterable[Row], by: tuple[str, ...]) -> list[tuple[tuple[str, ...], Used]]:
    """`by`: some of day, tenant, class, model; sums in their order."""
    sums: dict[tuple[str, ...], Used] = {}
    for row in rows:
        names = {
            "day": str(row.day),
            "tenant": row.tenant,
            "class": row.service_class.name,
            "model": row.pool,
        }
        place = tuple(names[each] for each in by)
        sums[place] = sums.get(place, Used()) + row.used
    return sorted(sums.items(), key=lambda item: item[0])
